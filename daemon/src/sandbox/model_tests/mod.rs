//! Ten thousands of random sequences on the host in memory, against a reference model: every verb, several at once,
//! holders that die, changes that fail, kills of the daemon between any two changes, reboots.
//!
//! After every move, each sandbox of the model is listed and is what it should be, and what the registry says is what the
//! host has. At the end of each sequence every sandbox can be used, where it is not damaged, and deleted, and the host is
//! empty. What fails is made as short as possible and printed; `PROPTEST_RNG_SEED=n` plays it again, `PROPTEST_CASES=n` sets
//! how many sequences there are.

mod belief; // what may be true of a sandbox, and what an answer leaves of it
mod daemon; // one daemon's life on a host
mod moves; // what is done, and at what moment
mod play; // a sequence, with the checks after each move

use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};

/// Sequences, unless `PROPTEST_CASES` says otherwise.
const SEQUENCES: u32 = 10_000;
/// Threads that play them.
const THREADS: u32 = 2;

/// Attack A07 at its full width: nothing is lost, nothing is stuck, nothing leaks.
#[test]
fn attack_a07_ten_thousand_sequences_match_the_model() {
    let mut config = Config {
        failure_persistence: None,
        max_shrink_iters: 2_000,
        // The numbers need not be good, and are half the work where nothing is optimised.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = SEQUENCES;
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => u64::from(getrandom::u32().expect("a random number")),
    };
    config.cases = config.cases.div_ceil(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let rng_seed = RngSeed::Fixed(seed.wrapping_add(thread.into()));
            let config = Config {
                rng_seed,
                ..config.clone()
            };
            scope.spawn(move || {
                if let Err(failure) = play_many(config) {
                    panic!("PROPTEST_RNG_SEED={seed} plays it again: {failure}");
                }
            });
        }
    });
}

/// Plays sequences; tells the shortest one that fails.
fn play_many(config: Config) -> Result<(), String> {
    let outcome = TestRunner::new(config).run(&moves::sequence(), |sequence| {
        play::play(&sequence).map_err(TestCaseError::fail)
    });
    outcome.map_err(|error| match error {
        TestError::Fail(why, sequence) => {
            let moves: Vec<String> = sequence.iter().map(|one| format!("  {one:?}")).collect();
            format!(
                "{why}\nthe shortest sequence that fails:\n{}",
                moves.join("\n")
            )
        }
        TestError::Abort(why) => format!("aborted: {why}"),
    })
}
