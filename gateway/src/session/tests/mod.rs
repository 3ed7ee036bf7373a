//! Sessions against a model: random interleavings of everything that can happen, and the rules one by one.

mod model_client;
mod rules;
mod world;

use proptest::prelude::*;
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
    Answer(usize),
    Drain(usize),
    Subscribe(usize),
    Unsubscribe(usize),
    Push,
    Reconnect,
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
    let grants = prop::collection::vec((0..3usize, any::<bool>()), 0..2);
    prop_oneof![
        6 => (changes(), Just(Vec::new()), any::<bool>())
            .prop_map(|(changes, grants, materialize)| Step::Commit { changes, grants, materialize }),
        3 => (changes(), grants, any::<bool>())
            .prop_map(|(changes, grants, materialize)| Step::Commit { changes, grants, materialize }),
        4 => Just(Step::BeginRead),
        6 => Just(Step::EndRead),
        8 => Just(Step::Message),
        4 => (0..4usize).prop_map(Step::Answer),
        6 => (1..6usize).prop_map(Step::Drain),
        3 => (0..3usize).prop_map(Step::Subscribe),
        1 => (0..3usize).prop_map(Step::Unsubscribe),
        2 => Just(Step::Push),
        1 => Just(Step::Reconnect),
        1 => (0..3usize).prop_map(Step::Prune),
        1 => Just(Step::ForgetRuns),
        2 => (0..3usize, changes()).prop_map(|(scope, between)| Step::Regrant { scope, between }),
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

fn run(sizes: Sizes, steps: Vec<Step>) {
    let mut world = World::new(sizes);
    for step in steps {
        match step {
            Step::Commit { changes, grants, materialize } => world.commit(&changes, &grants, materialize),
            Step::BeginRead => world.begin_read(),
            Step::EndRead => world.end_read(),
            Step::Message => drop(world.message()),
            Step::Answer(which) => drop(world.answer(which)),
            Step::Drain(frames) => drop(world.drain(frames)),
            Step::Subscribe(scope) => world.subscribe(scope),
            Step::Unsubscribe(scope) => world.unsubscribe(scope),
            Step::Push => world.push(),
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
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn v4_v5_v6_v7_p6_a_client_equals_the_model_at_each_cut_whatever_the_interleaving(
        sizes in sizes(),
        steps in prop::collection::vec(step(), 0..150),
    ) {
        run(sizes, steps);
    }
}
