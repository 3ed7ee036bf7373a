//! The rules one by one, each in the shortest script that shows it.

use super::model_client::Seen;
use super::world::{Change, Sizes, World};
use crate::session::{Command, Input};
use std::time::Instant;
use tidegate_protocol::{ClientFrame, CloseCode, Limits, ServerFrame, Subscribe, SubscriptionKind};

fn change(key: u8, scopes: u8) -> Change {
    Change { key, scopes }
}

/// A client that has joined the first two scopes.
fn joined(sizes: Sizes) -> World {
    let mut world = World::new(sizes);
    world.subscribe(0);
    world.subscribe(1);
    world.settle();
    world
}

fn until_it_waits_for_the_database(world: &mut World) {
    for _ in 0..10 {
        if world.waits_for() > 0 {
            return;
        }
        world.read();
        while world.message() {}
    }
    panic!("the session asks for nothing");
}

fn sends(seen: &[Seen]) -> bool {
    seen.iter().any(|seen| {
        matches!(seen, Seen::Page { .. } | Seen::Rebuild { .. } | Seen::Joined { .. } | Seen::Cut)
    })
}

#[test]
fn v5_a_page_that_is_all_of_a_batch_is_its_own_cut_and_two_pages_have_one() {
    let mut world = joined(Sizes::default());
    world.commit(&[change(1, 0b001)], &[], false);
    let seen = world.turns();
    assert!(matches!(seen.as_slice(), [Seen::Page { .. }]), "{seen:?}");
    world.commit(&[change(1, 0b010)], &[], false);
    let seen = world.turns();
    assert!(matches!(seen.as_slice(), [Seen::Page { .. }, Seen::Page { .. }, Seen::Cut]), "{seen:?}");
    // A scope that the client does not have makes no difference to it, but is part of the batch.
    world.commit(&[change(2, 0b101)], &[], false);
    let seen = world.turns();
    assert!(matches!(seen.as_slice(), [Seen::Page { .. }]), "nobody here follows the other scope: {seen:?}");
}

#[test]
fn v2_live_pages_wait_for_what_was_pending_in_their_own_read() {
    let mut world = joined(Sizes::default());
    world.accept(50);
    world.commit(&[change(1, 0b001)], &[], false);
    let seen = world.turns();
    assert_eq!(seen, [Seen::CapturePending(vec![50])]);
    world.materialize(&[50]);
    let seen = world.turns();
    assert!(matches!(seen.as_slice(), [Seen::Page { .. }, Seen::Cut]), "{seen:?}");
}

#[test]
fn v2_the_gating_set_only_shrinks() {
    let mut world = joined(Sizes::default());
    world.accept(50);
    world.commit(&[change(1, 0b001)], &[], false);
    assert!(!sends(&world.turns()));
    // A client that writes without pause still receives pages.
    world.accept(51);
    assert!(!sends(&world.turns()));
    world.materialize(&[50]);
    assert!(sends(&world.turns()), "51 gates the next operation, not this one");
    world.commit(&[change(1, 0b010)], &[], false);
    assert_eq!(world.turns(), [Seen::CapturePending(vec![51])]);
    world.materialize(&[51]);
    assert!(sends(&world.turns()));
}

#[test]
fn v2_rebuilds_and_joins_wait_and_the_snapshot_is_taken_after_they_were_asked_for() {
    let mut world = World::new(Sizes::default());
    world.settle();
    world.begin_read();
    // Accepted after the read under way began, before the session asks.
    world.accept(50);
    world.subscribe(0);
    world.end_read();
    let seen = world.turns();
    assert!(!sends(&seen), "{seen:?}");
    assert!(seen.contains(&Seen::CapturePending(vec![50])));
    world.materialize(&[50]);
    assert!(sends(&world.turns()));
}

#[test]
fn v6_a_session_without_scopes_gets_a_cut_for_what_came_round() {
    let mut world = World::new(Sizes::default());
    world.push();
    world.answer(0);
    world.commit(&[change(1, 0b001)], &[], true);
    let seen = world.turns();
    let told = seen.iter().position(|seen| *seen == Seen::Materialized(vec![1])).expect("told");
    assert_eq!(seen[told + 1], Seen::Cut);
}

#[test]
fn v6_nothing_is_cut_while_what_came_round_is_looked_up() {
    let mut world = joined(Sizes::default());
    world.push();
    world.answer(0);
    world.drain(usize::MAX);
    // It comes round while the client is away, so that only a look-up can tell.
    world.session_away(|world| world.commit(&[change(1, 0b001)], &[], true));
    world.seen.clear();
    for _ in 0..5 {
        world.read();
        while world.message() {}
        world.drain(usize::MAX);
    }
    let ends = |seen: &Seen| matches!(seen, Seen::Joined { .. } | Seen::Cut);
    assert!(!world.seen.iter().any(ends), "{:?}", world.seen);
    let seen = world.turns();
    let told = seen.iter().position(|seen| *seen == Seen::Materialized(vec![1])).expect("told");
    assert_eq!(
        seen.iter().position(ends),
        Some(told + 1),
        "with the first that ends at or after it: {seen:?}"
    );
}

#[test]
fn v5_a_batch_that_went_by_during_an_operation_and_a_look_up_is_caught_up_with() {
    let mut world = joined(Sizes::default());
    // It ran and came round while its answer was lost: sent again, it must be looked up.
    world.push();
    world.session_away(|world| {
        world.accept(1);
        world.materialize(&[1]);
    });
    // Everything but the push's answer, which stays the first of those that are waited for.
    for _ in 0..10 {
        world.read();
        while world.message() {}
        while world.waits_for() > 1 && world.answer(1) {}
        world.drain(usize::MAX);
    }
    // Another scope begins: an operation is under way for as long as its rows are being read.
    world.subscribe(2);
    for _ in 0..10 {
        world.read();
        while world.message() {}
    }
    assert_eq!(world.waits_for(), 2, "the push, and the rows");
    world.answer(0);
    assert_eq!(world.waits_for(), 2, "the rows, and the look-up");
    world.commit(&[change(1, 0b001)], &[], false);
    world.read();
    while world.message() {}
    // The look-up is answered before the rows.
    world.answer(1);
    world.settle();
}

#[test]
fn v5_a_session_that_was_left_behind_catches_up_in_one_cut() {
    let mut world = joined(Sizes { mailbox_batches: 1, ..Sizes::default() });
    for key in 0..5 {
        world.commit(&[change(key, 0b001), change(key + 5, 0b010)], &[], false);
        world.read();
    }
    let seen = world.turns();
    assert_eq!(seen.iter().filter(|seen| **seen == Seen::Cut).count(), 1, "{seen:?}");
    world.settle();
}

#[test]
fn a_resume_that_would_replay_more_than_the_scope_rebuilds_instead() {
    let mut world = joined(Sizes { window_bytes: 0, ..Sizes::default() });
    world.session_away(|world| {
        for _ in 0..40 {
            world.commit(&[change(1, 0b001)], &[], false);
            world.read();
        }
    });
    let seen = world.turns();
    let reason = |seen: &Seen| matches!(seen, Seen::Subscribed { name, reason: Some(reason), .. } if name == "s:a" && reason == "cheaper");
    assert!(seen.iter().any(reason), "{seen:?}");
    let resumed = |seen: &Seen| matches!(seen, Seen::Subscribed { name, reason: None, .. } if name == "s:b");
    assert!(seen.iter().any(resumed), "the other scope has nothing to replay");
}

#[test]
fn cl01_beginning_on_a_scope_again_and_again_is_bounded_by_name() {
    let mut world = World::new(Sizes::default());
    let subscribe = || {
        Input::Frame(ClientFrame::Subscribe(Subscribe {
            reference: 5,
            kind: SubscriptionKind::Scope,
            name: Some("s:a".into()),
            cursor: None,
            token: None,
            mismatch: None,
        }))
    };
    let mut attached = 0;
    let closed = loop {
        world.session.handle(subscribe(), Instant::now());
        let commands: Vec<Command> = world.session.commands.drain(..).collect();
        attached += commands.iter().filter(|command| matches!(command, Command::Attach(_))).count();
        let close = commands.iter().find_map(|command| match command {
            Command::Close(code) => Some(*code),
            _ => None,
        });
        if let Some(code) = close {
            break code;
        }
        assert!(attached <= 1000, "no end");
    };
    assert_eq!((attached, closed), (100, CloseCode::GoingAway));
    let mut codes = Vec::new();
    while let Some(bytes) = world.session.outbox.pop() {
        if let ServerFrame::ErrorFrame(error) =
            ServerFrame::decode(&bytes, &Limits::FROM_SERVER).expect("a frame")
        {
            codes.push((error.code.to_string(), error.reference));
        }
    }
    assert_eq!(codes, [("rate_limited".to_owned(), Some(5))]);
}

#[test]
fn v7_a_run_from_before_the_grant_is_not_for_whoever_is_granted_later() {
    let mut world = World::new(Sizes { rebuild_rows: 1, ..Sizes::default() });
    world.commit(&[change(1, 0b001), change(2, 0b001)], &[(0, false)], false);
    world.elder_rebuilds(0, 0);
    world.turns();
    world.elder_rebuilds(0, 0);
    // Gone before the grant, but in the elder's pages; and never in them, but among what its run would replay.
    world.commit(&[change(1, 0)], &[], false);
    world.commit(&[change(3, 0b001)], &[], false);
    world.commit(&[change(3, 0)], &[], false);
    world.commit(&[], &[(0, true)], false);
    world.turns();
    world.subscribe(0);
    let seen = world.turns();
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Rebuild { .. })), "{seen:?}");
    assert!(seen.iter().all(|seen| !matches!(seen, Seen::Page { .. })), "nothing to replay: {seen:?}");
    world.settle();
}

#[test]
fn v7_a_large_transactions_own_removals_come_before_its_first_part() {
    let mut world = joined(Sizes { read_effects: 2, page_effects: 1, ..Sizes::default() });
    let secrets: Vec<Change> = (1..7).map(|key| change(key, 0b011)).collect();
    world.commit(&secrets, &[(0, false)], false);
    let seen = world.turns();
    let of_a = |seen: &Seen| matches!(seen, Seen::Page { name, .. } if name == "s:a");
    assert!(!seen.iter().any(of_a), "{seen:?}");
    let told = |seen: &Seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["s:a"]);
    assert_eq!(seen.iter().position(told), Some(0), "{seen:?}");
    let cuts = seen.iter().filter(|seen| **seen == Seen::Cut).count();
    assert_eq!(cuts, 1, "the scope that is left gets all of it: {seen:?}");
    world.settle();
}

#[test]
fn v2_a_scope_that_is_asked_for_later_waits_for_a_snapshot_of_its_own() {
    let mut world = World::new(Sizes { rebuild_rows: 1, ..Sizes::default() });
    world.commit(&[change(1, 0b011), change(2, 0b011), change(3, 0b011)], &[], false);
    world.turns();
    world.subscribe(0);
    until_it_waits_for_the_database(&mut world);
    // The first scope's rows are on their way; the client learns of its write, and asks for another scope.
    world.accept(50);
    world.subscribe(1);
    let seen = world.turns();
    let of_it = |seen: &Seen| match seen {
        Seen::Rebuild { name } | Seen::Joined { name, .. } => name == "s:b",
        _ => false,
    };
    assert!(!seen.iter().any(of_it), "{seen:?}");
    assert!(seen.contains(&Seen::CapturePending(vec![50])), "{seen:?}");
    world.materialize(&[50]);
    assert!(world.turns().iter().any(of_it));
    world.settle();
}

#[test]
fn v7_a_batchs_own_removals_come_before_its_pages_also_ahead_of_the_urgent_word() {
    let mut world = joined(Sizes::default());
    // The scope is taken away in the transaction that writes a row of it.
    world.commit(&[change(1, 0b001), change(2, 0b010)], &[(0, false)], false);
    world.read();
    world.seen.clear();
    while world.message_in_its_turn() {}
    world.drain(usize::MAX);
    let removed = |seen: &Seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["s:a"]);
    assert!(world.seen.first().is_some_and(removed), "{:?}", world.seen);
    let paged = |seen: &Seen| matches!(seen, Seen::Page { name, .. } if name == "s:a");
    assert!(!world.seen.iter().any(paged), "{:?}", world.seen);
    world.settle();
}

#[test]
fn v7_what_was_taken_does_not_even_leave_the_queue() {
    let mut world = joined(Sizes { outbox_bytes: 1, ..Sizes::default() });
    for key in 0..3 {
        world.commit(&[change(key, 0b001)], &[], false);
        world.read();
        world.message();
    }
    // The client has read nothing; the removal overtakes what is queued for it.
    world.commit(&[], &[(0, false)], false);
    world.read();
    world.message();
    world.seen.clear();
    world.drain(usize::MAX);
    assert!(world.seen.iter().all(|seen| !matches!(seen, Seen::Page { .. })), "{:?}", world.seen);
    assert!(world.seen.iter().any(|seen| matches!(seen, Seen::Scopes { .. })));
}
