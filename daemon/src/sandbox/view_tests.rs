//! Listing and watching ten thousand sandboxes: what callers may ask, and what it costs, on the host in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::fake::{Fake, FakeLive};
use super::filter::Filter;
use super::handle::{Handle, Identity, Status};
use super::id::{SandboxId, SandboxName, Tenant};
use super::limits::{RequestedLimits, Shortfall};
use super::registry::{Registry, SandboxRef};
use super::spec::Spec;
use super::state::State;
use super::watch::{Told, Watch, Watching};

/// As ATTACKS A17 has it.
const MANY: usize = 10_000;

/// A registry with so many sandboxes, every tenth of which is stopped and has the label `team=red`.
async fn registry(count: usize) -> Registry<Fake> {
    let registry = Registry::open(Fake::default()).await.expect("opened");
    for number in 0..count {
        let state = match number % 10 {
            0 => State::Stopped,
            _ => State::Running,
        };
        registry.table().insert(&sandbox(number, state));
    }
    registry
}

fn sandbox(number: usize, state: State) -> Handle<FakeLive> {
    let identity = Identity {
        id: SandboxId::random(),
        tenant: Tenant::default(),
        name: SandboxName::parse(&format!("s{number:05}")).expect("valid"),
    };
    let team = if number.is_multiple_of(10) {
        "red"
    } else {
        "blue"
    };
    let mut status = Status::new(state, Vec::new());
    status.spec = Some(Arc::new(spec(&identity, team)));
    Handle::new(identity, 0, status).0
}

fn spec(identity: &Identity, team: &str) -> Spec {
    Spec {
        tenant: identity.tenant.clone(),
        name: identity.name.clone(),
        image: String::new(),
        image_digest: String::new(),
        env: BTreeMap::new(),
        labels: team_label(team),
        requested: RequestedLimits::default(),
        limits: super::limits::Limits::default(),
        shortfall: Shortfall::Refuse,
        idle: Default::default(),
        confinement: Default::default(),
    }
}

fn team_label(team: &str) -> BTreeMap<String, String> {
    [("team".to_owned(), team.to_owned())].into()
}

/// Names in the order of the pages.
fn pages(registry: &Registry<Fake>, filter: &Filter, size: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut after: Option<Identity> = None;
    loop {
        let page = registry.list(&Tenant::default(), filter, after.as_ref(), size);
        assert!(page.len() <= size);
        let Some(last) = page.last() else {
            return names;
        };
        after = Some(last.identity().clone());
        names.extend(page.iter().map(|handle| handle.identity().name.to_string()));
    }
}

/// What is told now, in its order: names, ids of what went, and `synced`.
fn told_now(watch: &mut Watch<FakeLive>) -> Vec<String> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    while let Poll::Ready(Some(told)) = watch.poll_told(&mut cx) {
        all.push(match told {
            Told::Sandbox(view) => format!("{} {:?}", view.identity.name, view.state),
            Told::Deleted(id) => format!("{id} deleted"),
            Told::Synced => "synced".to_owned(),
        });
    }
    all
}

fn watch(registry: &Registry<Fake>, watching: Watching) -> Watch<FakeLive> {
    let watch = registry.watch(&Tenant::default(), watching);
    watch.expect("there is a place")
}

/// A page begins after whatever name and id its token says, whether there is such a sandbox or not: a forged one gives
/// nothing but another part of the caller's own list, and never more than a page.
#[tokio::test]
async fn attack_a17_pages_over_ten_thousand_are_whole_and_forged_tokens_only_begin_elsewhere() {
    let registry = registry(MANY).await;
    let names = pages(&registry, &Filter::default(), 1000);
    let expected: Vec<_> = (0..MANY).map(|number| format!("s{number:05}")).collect();
    assert_eq!(names, expected);
    let red = Filter {
        labels: team_label("red"),
        states: vec![State::Stopped, State::Frozen],
    };
    assert_eq!(pages(&registry, &red, 7).len(), MANY / 10);
    let forged = |name: &str| Identity {
        id: SandboxId::random(),
        tenant: Tenant::parse("other").expect("valid"),
        name: SandboxName::parse(name).expect("valid"),
    };
    for (name, first) in [
        ("0", Some("s00000")),
        ("s00500a", Some("s00501")),
        ("z", None),
    ] {
        let after = forged(name);
        let page = registry.list(&Tenant::default(), &Filter::default(), Some(&after), 100);
        let found = page.first().map(|handle| handle.identity().name.as_str());
        assert_eq!(found, first, "after {name}");
    }
}

#[tokio::test]
async fn a_watcher_of_ten_thousand_gets_all_then_synced_then_the_newest_of_each_change() {
    let registry = registry(MANY).await;
    let mut watch = watch(&registry, Watching::default());
    let told = told_now(&mut watch);
    assert_eq!(
        (told.len(), told.last().map(String::as_str)),
        (MANY + 1, Some("synced"))
    );
    let all = registry.table().all();
    for state in [State::Frozen, State::Running, State::Damaged] {
        for handle in &all {
            handle.update(|status| status.state = state);
        }
    }
    let told = told_now(&mut watch);
    assert_eq!(told.len(), MANY);
    assert!(told.iter().all(|line| line.ends_with(" Damaged")));
    assert!(told_now(&mut watch).is_empty());
}

#[tokio::test]
async fn what_comes_and_goes_is_told_and_what_went_unseen_is_not() {
    let registry = registry(0).await;
    let table = registry.table();
    let mut watch = watch(&registry, Watching::default());
    assert_eq!(told_now(&mut watch), ["synced"]);
    let (seen, unseen) = (sandbox(1, State::Creating), sandbox(2, State::Creating));
    table.insert(&seen);
    assert_eq!(told_now(&mut watch), ["s00001 Creating"]);
    table.insert(&unseen);
    table.remove(&unseen);
    table.remove(&seen);
    assert_eq!(told_now(&mut watch), [format!("{} deleted", seen.id())]);
}

#[tokio::test]
async fn who_watches_labels_is_told_a_last_time_of_one_that_loses_them() {
    let registry = registry(0).await;
    let (red, blue) = (sandbox(0, State::Running), sandbox(1, State::Running));
    registry.table().insert(&red);
    registry.table().insert(&blue);
    let watching = Watching {
        sandbox: None,
        labels: team_label("red"),
    };
    let mut watch = watch(&registry, watching);
    assert_eq!(told_now(&mut watch), ["s00000 Running", "synced"]);
    let repaint = |handle: &Handle<FakeLive>, team| {
        let spec = Arc::new(spec(handle.identity(), team));
        handle.update(|status| status.spec = Some(spec));
    };
    repaint(&red, "blue");
    assert_eq!(told_now(&mut watch), ["s00000 Running"]);
    red.update(|status| status.state = State::Stopped);
    assert!(told_now(&mut watch).is_empty());
    repaint(&blue, "red");
    assert_eq!(told_now(&mut watch), ["s00001 Running"]);
}

#[tokio::test]
async fn who_watches_one_is_told_of_no_other_and_hears_its_end() {
    let registry = registry(0).await;
    let (one, other) = (sandbox(0, State::Running), sandbox(1, State::Running));
    registry.table().insert(&one);
    registry.table().insert(&other);
    let watching = Watching {
        sandbox: Some(SandboxRef::Name(one.identity().name.clone())),
        labels: BTreeMap::new(),
    };
    // One that goes before anything is told is told all the same.
    let (mut reads, mut sleeps) = (
        watch(&registry, watching.clone()),
        watch(&registry, watching.clone()),
    );
    assert_eq!(told_now(&mut reads), ["s00000 Running", "synced"]);
    other.update(|status| status.state = State::Stopped);
    assert!(told_now(&mut reads).is_empty());
    registry.table().remove(&one);
    let gone = format!("{} deleted", one.id());
    assert_eq!(told_now(&mut reads), std::slice::from_ref(&gone));
    assert!(told_now(&mut sleeps).contains(&gone));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(reads.poll_told(&mut cx), Poll::Ready(None)));
    let again = registry.watch(&Tenant::default(), watching);
    assert_eq!(
        again.err().expect("it is gone").reason(),
        "SANDBOX_NOT_FOUND"
    );
}

/// A run that begins or ends and a stream that opens or closes are changes; looking is none.
#[tokio::test]
async fn use_is_told_and_looking_is_not() {
    let registry = registry(1).await;
    let mut watch = watch(&registry, Watching::default());
    told_now(&mut watch);
    let handle = registry.table().all().pop().expect("one");
    handle.view();
    registry.list(&Tenant::default(), &Filter::default(), None, 10);
    assert!(told_now(&mut watch).is_empty());
    let stream = handle.open_stream();
    assert_eq!(told_now(&mut watch).len(), 1);
    drop(stream);
    assert_eq!(told_now(&mut watch).len(), 1);
    let run = handle.runs().reserve_place().expect("a place");
    assert_eq!(told_now(&mut watch).len(), 1);
    drop(run);
    assert_eq!(told_now(&mut watch).len(), 1);
}
