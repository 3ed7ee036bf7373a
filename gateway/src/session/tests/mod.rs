//! Sessions against a model: random interleavings of everything that can happen, and the rules one by one.

mod coverage;
mod model_client;
mod rules;
mod world;

use coverage::Coverage;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use world::{Change, Sizes, World};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Commit {
        changes: Vec<Change>,
        grants: Vec<(usize, bool)>,
        materialize: bool,
    },
    BeginRead,
    EndRead,
    Message,
    /// The session is quicker than the hub's urgent word.
    MessageInItsTurn,
    Answer(usize),
    Drain(usize),
    Subscribe(usize),
    Unsubscribe(usize),
    Push,
    /// The database has run what was pushed; the answers are still under way, and get lost if the client reconnects.
    Ran,
    Reconnect,
    /// A push runs and comes round, and its answer is lost with the connection: sent again, it is looked up.
    AnswerLost,
    /// Everything moves once: without it, few scripts bring a scope as far as its first page.
    Turn,
    Prune(usize),
    ForgetRuns,
    /// Taken, some changes, given again.
    Regrant {
        scope: usize,
        between: Vec<Change>,
    },
    /// Another member, whose grants are older, reads a scope as whoever has begun so often.
    ElderRebuilds {
        scope: usize,
        nth: u32,
    },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    // One change per row: a transaction has the net effect of each (R6).
    prop::collection::btree_map(0..12u8, 0..8u8, 0..6)
        .prop_map(|map| map.into_iter().map(|(key, scopes)| Change { key, scopes }).collect())
}

fn step() -> impl Strategy<Value = Step> {
    // What is taken is given again more often than not, or most scripts would end without any scope.
    let grants = prop::collection::vec((0..3usize, prop::bool::weighted(0.8)), 0..2);
    prop_oneof![
        12 => (changes(), Just(Vec::new()), any::<bool>())
            .prop_map(|(changes, grants, materialize)| Step::Commit { changes, grants, materialize }),
        1 => (changes(), grants, any::<bool>())
            .prop_map(|(changes, grants, materialize)| Step::Commit { changes, grants, materialize }),
        4 => Just(Step::BeginRead),
        6 => Just(Step::EndRead),
        8 => Just(Step::Message),
        2 => Just(Step::MessageInItsTurn),
        4 => (0..4usize).prop_map(Step::Answer),
        6 => (1..6usize).prop_map(Step::Drain),
        6 => (0..3usize).prop_map(Step::Subscribe),
        1 => (0..3usize).prop_map(Step::Unsubscribe),
        2 => Just(Step::Push),
        1 => Just(Step::Ran),
        2 => Just(Step::AnswerLost),
        12 => Just(Step::Turn),
        3 => Just(Step::Reconnect),
        1 => (0..3usize).prop_map(Step::Prune),
        1 => Just(Step::ForgetRuns),
        1 => (0..3usize, changes()).prop_map(|(scope, between)| Step::Regrant { scope, between }),
        2 => (0..3usize, 0..3u32).prop_map(|(scope, nth)| Step::ElderRebuilds { scope, nth }),
    ]
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (
        1..5usize,
        1..4u32,
        1..10u32,
        1..800usize,
        1..4usize,
        prop_oneof![Just(0usize), Just(600), Just(1 << 20)],
        1..5usize,
    )
        .prop_map(
            |(
                page_effects,
                read_transactions,
                read_effects,
                outbox_bytes,
                mailbox_batches,
                window_bytes,
                rebuild_rows,
            )| {
                Sizes {
                    page_effects,
                    read_transactions,
                    read_effects,
                    outbox_bytes,
                    mailbox_batches,
                    window_bytes,
                    rebuild_rows,
                }
            },
        )
}

/// `joined`: the client has all scopes when the script begins.
fn run(sizes: Sizes, joined: bool, steps: Vec<Step>, coverage: &mut Coverage) {
    let mut world = World::new(sizes);
    if joined {
        (0..3).for_each(|scope| world.subscribe(scope));
        world.settle();
        // What the script itself shows is what counts.
        world.seen.clear();
    }
    for step in steps {
        match step {
            Step::Commit { changes, grants, materialize } => world.commit(&changes, &grants, materialize),
            Step::BeginRead => world.begin_read(),
            Step::EndRead => world.end_read(),
            Step::Message => drop(world.message()),
            Step::MessageInItsTurn => drop(world.message_in_its_turn()),
            Step::Answer(which) => drop(world.answer(which)),
            Step::Drain(frames) => drop(world.drain(frames)),
            Step::Subscribe(scope) => world.subscribe(scope),
            Step::Unsubscribe(scope) => world.unsubscribe(scope),
            Step::Push => world.push(),
            Step::Ran => world.ran(),
            Step::AnswerLost => {
                world.push();
                world.ran();
                world.commit(&[], &[], true);
                world.reconnect();
            }
            Step::Turn => world.turn(),
            Step::Reconnect => world.reconnect(),
            Step::Prune(scope) => world.prune(scope),
            Step::ForgetRuns => world.forget_runs(),
            Step::Regrant { scope, between } => {
                world.commit(&[], &[(scope, false)], false);
                world.commit(&between, &[], false);
                world.commit(&[], &[(scope, true)], false);
            }
            Step::ElderRebuilds { scope, nth } => world.elder_rebuilds(scope, nth),
        }
    }
    coverage.count(&world.seen);
    world.settle();
}

#[test]
fn v4_v5_v6_v7_p6_a_client_equals_the_model_at_each_cut_whatever_the_interleaving() {
    let full = std::env::var_os("TIDEGATE_SCALE").is_some_and(|scale| scale == "full");
    let cases: u32 = if full { 50_000 } else { 2_000 };
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 20_000,
        // Seeds that failed are kept beside the sources and tried first.
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    let coverage = RefCell::new(Coverage::default());
    let scripts = (sizes(), any::<bool>(), prop::collection::vec(step(), 0..200));
    let mut runner = TestRunner::new(config);
    let result = runner.run(&scripts, |(sizes, joined, steps)| {
        run(sizes, joined, steps, &mut coverage.borrow_mut());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}\n{runner}");
    }
    coverage.borrow().assert_enough(cases);
}
