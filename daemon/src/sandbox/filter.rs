//! Which sandboxes a caller asks for: those with some labels, in some states.

use std::collections::BTreeMap;

use super::state::State;

/// Which sandboxes are meant. The default means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those that have all of these labels with these values.
    pub labels: BTreeMap<String, String>,
    /// Those in one of these states; empty means all.
    pub states: Vec<State>,
}

impl Filter {
    /// Whether it means a sandbox in this state with these labels.
    pub fn matches(&self, state: State, labels: &BTreeMap<String, String>) -> bool {
        let has = |(name, value)| labels.get(name) == Some(value);
        (self.states.is_empty() || self.states.contains(&state)) && self.labels.iter().all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_must_all_be_there_and_one_state_is_enough() {
        let labels = |text: &str| -> BTreeMap<String, String> {
            let pairs = text
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='));
            pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        };
        let filter = Filter {
            labels: labels("a=1 b=2"),
            states: vec![State::Running, State::Frozen],
        };
        for (state, has, expected) in [
            (State::Frozen, "a=1 b=2 c=3", true),
            (State::Running, "b=2 a=1", true),
            (State::Stopped, "a=1 b=2", false),
            (State::Running, "a=1", false),
            (State::Running, "a=1 b=3", false),
            (State::Running, "", false),
        ] {
            assert_eq!(
                filter.matches(state, &labels(has)),
                expected,
                "{state:?} {has}"
            );
        }
        assert!(Filter::default().matches(State::Damaged, &BTreeMap::new()));
    }
}
