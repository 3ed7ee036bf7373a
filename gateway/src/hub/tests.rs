//! Windows: what they cover, what they know, and what stays true when they let go of pages.

use std::sync::Arc;
use tidegate_log::{
    Anchor, ClientKey, Effect, EffectBatch, EffectPosition, Lineage, Materialized, Pending, ScopeFacts,
    ScopeState, TailPosition, Told,
};
use tidegate_model::*;
use tidegate_protocol::{Limits, ScopeNumber, ServerFrame};
use uuid::Uuid;

use super::*;

fn press(effects_max: usize) -> Press {
    Press {
        lineage: Lineage {
            generation: GenerationId(1),
            stream: StreamGeneration(Uuid::from_u128(1)),
            state: StateId(1),
            server: ServerIdentity { system: 7, timeline: 1 },
        },
        keys: KeyRing::new(CursorKeys::new([(1, [9; 32])]).expect("a key")),
        bounds: PageBounds { effects_max, bytes_max: 1 << 20 },
        base: Lsn(0),
    }
}

fn end(commit: u64) -> Point {
    Point::TransactionEnd { commit_lsn: Lsn(commit) }
}

fn state(count: u64) -> ScopeState {
    ScopeState { digest: ScopeDigest(u128::from(count)), row_count: count }
}

fn effect(commit: u64, event: u64) -> Effect {
    Effect {
        scope: ScopeId(1),
        position: EffectPosition { commit_lsn: Lsn(commit), event_ordinal: event, effect_ordinal: 0 },
        table: TableId(1),
        key: RowKey::Int(commit as i64).wire().into(),
        version: RowVersion(Uuid::from_u128(u128::from(commit))),
        row: Some(vec![0x91, 1].into()),
        schema_version: RegistryGeneration(1),
        after: state(commit * 10 + event),
    }
}

fn pages(press: &Press, effects: &[Effect], through: u64, fin: bool) -> Vec<Arc<Page>> {
    let name = ScopeName("s".into());
    let stretch =
        Stretch { number: ScopeNumber(1), name: &name, effects, through: Some(end(through)), more: false };
    press.pages(stretch, fin)
}

fn feed(from: u64, facts: Option<&ScopeFacts>) -> Feed {
    Feed::new(ScopeNumber(1), FeedKey { scope: ScopeName("s".into()), nth: 0 }, end(from), facts)
}

fn ends(covered: Covered) -> Result<Vec<Point>, Point> {
    match covered {
        Covered::Pages(pages) => Ok(pages.iter().map(|page| page.end).collect()),
        Covered::Not { until } => Err(until),
    }
}

#[test]
fn p6_pages_end_between_effects_and_say_whether_the_transaction_goes_on() {
    let press = press(2);
    let made = pages(&press, &[effect(5, 0), effect(5, 1), effect(5, 2), effect(6, 0)], 9, false);
    let told: Vec<_> = made
        .iter()
        .map(|page| match ServerFrame::decode(page.frame(), &Limits::FROM_SERVER).expect("a frame") {
            ServerFrame::Page(page) => (page.more, page.count, page.fin),
            other => panic!("expected a page, got {}", other.name()),
        })
        .collect();
    assert_eq!(told, [(true, 51, false), (false, 60, false)]);
    assert_eq!(made[0].end, effect(5, 1).position.point(), "a cursor inside a transaction is the effect's");
    assert_eq!(made[1].end, end(9), "one at the stretch's end is the stretch's");
}

#[test]
fn v5_the_plain_form_of_a_page_that_is_its_own_cut_is_the_same_without_it() {
    let press = press(10);
    let cut = &pages(&press, &[effect(5, 0)], 5, true)[0];
    let plain = &pages(&press, &[effect(5, 0)], 5, false)[0];
    assert_ne!(cut.frame(), plain.frame());
    assert_eq!(cut.plain_frame(), *plain.frame());
}

#[test]
fn a_window_answers_only_for_what_it_covers() {
    let press = press(1);
    let feed = feed(10, None);
    feed.extend(&pages(&press, &[effect(20, 0), effect(20, 1)], 20, false));
    feed.extend(&pages(&press, &[effect(30, 0)], 30, false));
    let first = effect(20, 0).position.point();
    assert_eq!(ends(feed.read(end(10), end(30))), Ok(vec![first, end(20), end(30)]));
    assert_eq!(ends(feed.read(end(10), end(25))), Ok(vec![first, end(20)]), "pages beyond are not touched");
    assert_eq!(ends(feed.read(first, end(30))), Ok(vec![end(20), end(30)]));
    assert_eq!(ends(feed.read(end(30), end(40))), Ok(vec![]));
    // Nothing of an unborn scope lies before the window, so its beginning is as good as any earlier point.
    assert_eq!(ends(feed.read(end(1), end(15))), Ok(vec![]));
    feed.evict();
    assert_eq!(ends(feed.read(end(10), end(30))), Err(first), "the log has the rest");
    assert_eq!(ends(feed.read(first, end(30))), Ok(vec![end(20), end(30)]));
}

#[test]
fn p9_a_window_knows_the_scope_at_a_point_or_says_that_it_does_not() {
    let press = press(2);
    let facts = ScopeFacts {
        scope: ScopeId(1),
        state: state(8),
        tail: Some(EffectPosition { commit_lsn: Lsn(8), event_ordinal: 0, effect_ordinal: 0 }),
        floor: None,
    };
    let feed = feed(10, Some(&facts));
    assert_eq!(feed.state_at(end(9)), Some(state(8)), "unchanged since its last effect");
    assert_eq!(feed.state_at(end(7)), None);
    feed.extend(&pages(&press, &[effect(20, 0), effect(20, 1)], 25, false));
    assert_eq!(feed.state_at(end(15)), Some(state(8)));
    assert_eq!(feed.state_at(end(20)), Some(state(201)));
    assert_eq!(feed.state_at(effect(20, 0).position.point()), None, "inside a page");
    feed.evict();
    assert_eq!(feed.state_at(end(22)), Some(state(201)), "letting go of a page keeps what it led to");
    assert_eq!(feed.state_at(end(15)), None);
}

fn rules() -> crate::grants::StaticGrants {
    let registry = r#"{"generation":1,"relations":[],"grants":[]}"#;
    let registry = tidegate_model::Snapshot::from_json(registry).expect("a snapshot");
    crate::grants::StaticGrants::new(&registry, &Default::default())
}

/// A hub and one member, registered.
fn hub() -> (Core, Arc<Mailbox>) {
    let bounds = HubBounds { window_bytes_max: 1 << 20, idle_feeds_max: 100 };
    let mut core = Core::new(Arc::new(press(10)), bounds, rules(), TailPosition::default());
    let mailbox = Arc::new(Mailbox::new(4));
    let client = ClientKey { subject: Subject("anna".into()), client: ClientId(Uuid::nil()) };
    core.request(Request::Register { member: MemberId(1), client, mailbox: mailbox.clone() });
    (core, mailbox)
}

/// One read of the tail, whole through `through`.
fn read(core: &mut Core, through: u64, effects: Vec<Effect>) {
    read_with(core, through, effects, Vec::new());
}

/// One that brings the member's mutation round.
fn read_its_own(core: &mut Core, through: u64) {
    let client = ClientKey { subject: Subject("anna".into()), client: ClientId(Uuid::nil()) };
    read_with(
        core,
        through,
        Vec::new(),
        vec![Materialized { commit_lsn: Lsn(through), client, number: through }],
    );
}

fn read_with(core: &mut Core, through: u64, effects: Vec<Effect>, materialized: Vec<Materialized>) {
    let interest = core.begin_read();
    let anchor = Anchor {
        lineage: press(10).lineage,
        tip: Some(Lsn(through)),
        registry: RegistryGeneration(1),
        processed: Lsn(through),
        written: None,
        removed: None,
    };
    let batch = EffectBatch {
        anchor,
        after: TailPosition::default(),
        through: TailPosition::end_of(Lsn(through)),
        at_tip: true,
        effects,
        continues: None,
        grants: Vec::new(),
        materialized,
        pending: Pending::default(),
        names: Vec::new(),
        told: Some(Told { scopes: interest.scopes, subjects: interest.subjects, ..Told::default() }),
    };
    core.take(batch, false);
}

#[test]
fn s3_the_tail_never_goes_back() {
    let (mut core, mailbox) = hub();
    read(&mut core, 20, Vec::new());
    assert!(matches!(mailbox.pop(), Some(Message::Registered(_))));
    core.request(Request::Sync { member: MemberId(1), urgent: true });
    read(&mut core, 10, Vec::new());
    assert!(mailbox.pop().is_none(), "nobody is told of a place before the one that was told");
    read(&mut core, 20, Vec::new());
    match mailbox.pop() {
        Some(Message::Sync { snapshot, .. }) => assert_eq!(snapshot.through, end(20)),
        other => panic!("expected to be in step, got {other:?}"),
    }
}

/// Takes everything out, which ends with a word that batches were dropped; what the answers before it said of that.
fn synced(mailbox: &Mailbox) -> Vec<bool> {
    let mut told: Vec<Message> = std::iter::from_fn(|| mailbox.pop()).collect();
    assert!(matches!(told.pop(), Some(Message::Missed)), "{told:?}");
    told.iter()
        .filter_map(|message| match message {
            Message::Sync { missed, .. } => Some(*missed),
            _ => None,
        })
        .collect()
}

#[test]
fn v5_batches_that_were_dropped_before_an_answer_are_missed_in_it() {
    let (mut core, mailbox) = hub();
    read_its_own(&mut core, 10);
    core.request(Request::Sync { member: MemberId(1), urgent: true });
    // The answer stands behind the batch; what comes after it overflows, and both go.
    for through in [20, 30, 40, 50, 60] {
        read_its_own(&mut core, through);
    }
    assert_eq!(synced(&mailbox), [true]);
    // Nothing that is dropped came before the second answer here: it says what it said.
    for through in [70, 80] {
        core.request(Request::Sync { member: MemberId(1), urgent: true });
        read(&mut core, through, Vec::new());
    }
    for through in [90, 100, 110, 120, 130] {
        read_its_own(&mut core, through);
    }
    assert_eq!(synced(&mailbox), [true, false]);
}

#[test]
fn cl01_feeds_that_one_client_left_behind_are_not_fed() {
    let (mut core, mailbox) = hub();
    read(&mut core, 10, Vec::new());
    let member = MemberId(1);
    for nth in 0..50 {
        let feed = FeedKey { scope: ScopeName("s".into()), nth };
        core.request(Request::Attach { member, feed: feed.clone() });
        read(&mut core, 20 + u64::from(nth), Vec::new());
        core.request(Request::Detach { member, feed });
        // Left before anything was told about it.
        let feed = FeedKey { scope: ScopeName("t".into()), nth };
        core.request(Request::Attach { member, feed: feed.clone() });
        core.request(Request::Detach { member, feed });
        assert_eq!(core.feeds().0, 2, "only the first ones are kept for those who come back");
    }
    while mailbox.pop().is_some() {}
    // Two members of one further feed: it goes with the last.
    let feed = FeedKey { scope: ScopeName("s".into()), nth: 1 };
    let client = ClientKey { subject: Subject("ben".into()), client: ClientId(Uuid::nil()) };
    let ben = Arc::new(Mailbox::new(4));
    core.request(Request::Register { member: MemberId(2), client, mailbox: ben });
    for member in [member, MemberId(2)] {
        core.request(Request::Attach { member, feed: feed.clone() });
    }
    core.request(Request::Detach { member, feed });
    assert_eq!(core.feeds().0, 3);
    core.request(Request::Leave { member: MemberId(2) });
    assert_eq!(core.feeds().0, 2);
}

#[test]
fn facts_that_are_ahead_of_the_tail_hold_only_from_their_own_point_on() {
    let press = press(2);
    // The snapshot saw the effect at 20; the tail stands at 10.
    let facts = ScopeFacts {
        scope: ScopeId(1),
        state: state(200),
        tail: Some(EffectPosition { commit_lsn: Lsn(20), event_ordinal: 0, effect_ordinal: 0 }),
        floor: None,
    };
    let feed = feed(10, Some(&facts));
    assert_eq!(feed.state_at(end(10)), None);
    feed.extend(&pages(&press, &[effect(15, 0)], 15, false));
    assert_eq!(feed.state_at(end(15)), Some(state(150)));
    feed.extend(&pages(&press, &[effect(20, 0)], 20, false));
    assert_eq!(feed.state_at(end(20)), Some(state(200)));
}
