//! Which of a client's mutations this socket still owes a `materialized` (V6): each accepted one exactly once.

use std::collections::BTreeMap;
use tidegate_model::{Lsn, Point};

/// What the database says about a mutation whose coming round may have gone by unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Materialized by this source transaction of the current generation.
    Materialized(Lsn),
    /// Visible to whoever has joined since: covered by a baseline, of an earlier generation, or so old that its record is gone.
    Past,
    /// Accepted, not come round: the tail will tell.
    Pending,
    /// Never accepted.
    NotAccepted,
}

/// Mutations of one client on one socket.
#[derive(Debug, Default)]
pub struct Awaited {
    /// Pushed, resent or reported as awaited; whether their acceptance is known.
    waiting: BTreeMap<u64, bool>,
    /// Come round at this point, not yet announced.
    due: BTreeMap<u64, Point>,
    /// Seen coming round before anybody here had asked; a push of theirs may be under way (or they are another socket's).
    seen: BTreeMap<u64, Point>,
    /// Announced on this socket.
    announced: Ranges,
    /// Batches went by unseen on this socket: from then on what a push decides must be looked up, because it may have been in
    /// flight, or another socket's, while its coming round was missed.
    missed: bool,
}

/// Most mutations of other sockets that are remembered: the same client on another socket is rare, and a resend settles.
const SEEN_MAX: usize = 1024;

impl Awaited {
    /// The client is about to run these, or has reported them as awaited.
    pub fn ask(&mut self, numbers: impl IntoIterator<Item = u64>, accepted: bool) {
        for number in numbers {
            if self.announced.contains(number) || self.due.contains_key(&number) {
                continue;
            }
            match self.seen.remove(&number) {
                // A fence exists only if its mutation was accepted.
                Some(point) => {
                    self.due.insert(number, point);
                }
                None => *self.waiting.entry(number).or_default() |= accepted,
            }
        }
    }

    /// The tail brought these round.
    pub fn came_round(&mut self, numbers: impl IntoIterator<Item = (u64, Lsn)>) {
        for (number, commit_lsn) in numbers {
            let point = Point::TransactionEnd { commit_lsn };
            if self.waiting.remove(&number).is_some() {
                self.due.insert(number, point);
            } else if !self.announced.contains(number) && !self.due.contains_key(&number) {
                self.seen.insert(number, point);
                if self.seen.len() > SEEN_MAX {
                    self.seen.pop_first();
                }
            }
        }
    }

    /// A push ended: this number was accepted or not. True if what became of it must be looked up.
    pub fn decided(&mut self, number: u64, accepted: bool, before: u64) -> bool {
        if !accepted {
            self.waiting.remove(&number);
            return false;
        }
        if self.announced.contains(number) || self.due.contains_key(&number) {
            return false;
        }
        if let Some(point) = self.seen.remove(&number) {
            self.due.insert(number, point);
            return false;
        }
        // The same number may be under way twice, and an earlier try may have ended without deciding it: then nobody waited.
        let waited = self.waiting.insert(number, true).is_some();
        // It ran before this session was registered, or while it missed batches: its coming round may have gone by.
        !waited || number <= before || self.missed
    }

    /// A push ended without deciding these.
    pub fn undecided(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            if self.waiting.get(&number) == Some(&false) {
                self.waiting.remove(&number);
            }
        }
    }

    /// The database's answer.
    pub fn settled(&mut self, number: u64, settled: Settled) {
        if !self.waiting.contains_key(&number) {
            return;
        }
        let point = match settled {
            Settled::Pending => return,
            Settled::NotAccepted => {
                self.waiting.remove(&number);
                return;
            }
            Settled::Materialized(commit_lsn) => Point::TransactionEnd { commit_lsn },
            Settled::Past => Point::GenerationStart,
        };
        self.waiting.remove(&number);
        self.due.insert(number, point);
    }

    /// Something was missed. Those accepted whose coming round has not been seen, to be looked up now; those still undecided
    /// follow when they are decided.
    pub fn unseen(&mut self) -> Vec<u64> {
        self.missed = true;
        self.waiting.iter().filter(|(_, accepted)| **accepted).map(|(number, _)| *number).collect()
    }

    /// Whether something can be announced at a cut at `at`.
    pub fn is_due(&self, at: Point) -> bool {
        self.due.values().any(|point| *point <= at)
    }

    /// Whether something waits for a cut.
    pub fn any_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes what a cut at `at` announces, ascending.
    pub fn announce(&mut self, at: Point) -> Vec<u64> {
        let numbers: Vec<u64> =
            self.due.iter().filter(|(_, point)| **point <= at).map(|(number, _)| *number).collect();
        for number in &numbers {
            self.due.remove(number);
            self.announced.insert(*number);
        }
        numbers
    }
}

/// A set of numbers that come mostly one after the other.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let (mut first, mut last) = (number, number);
        if let Some((before, end)) = self.0.range(..number).next_back().map(|(first, last)| (*first, *last))
            && end + 1 == number
        {
            first = before;
        }
        if let Some(end) = self.0.remove(&(number + 1)) {
            last = end;
        }
        self.0.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Point = Point::TransactionEnd { commit_lsn: Lsn(100) };

    #[test]
    fn v6_each_accepted_number_is_announced_once_in_whatever_order_outcome_and_tail_come() {
        let mut awaited = Awaited::default();
        awaited.ask([1, 2, 3], false);
        awaited.came_round([(1, Lsn(5))]);
        assert_eq!(awaited.announce(AT), [1], "before its outcome: a fence proves acceptance");
        assert!(!awaited.decided(1, true, 0));
        awaited.decided(2, true, 0);
        awaited.decided(3, false, 0);
        awaited.came_round([(2, Lsn(200)), (3, Lsn(6))]);
        assert_eq!(awaited.announce(AT), [0; 0], "2 lies beyond this cut, 3 was not accepted");
        assert_eq!(awaited.announce(Point::TransactionEnd { commit_lsn: Lsn(200) }), [2]);
        awaited.ask([1, 2], false);
        awaited.came_round([(1, Lsn(5)), (2, Lsn(200))]);
        assert!(!awaited.any_due(), "resent on the same socket: not announced again");
    }

    #[test]
    fn v6_a_number_seen_before_its_push_was_sent_here_is_announced_when_it_is() {
        let mut awaited = Awaited::default();
        awaited.came_round([(7, Lsn(5))]);
        assert!(!awaited.any_due());
        awaited.ask([7], false);
        assert_eq!(awaited.announce(AT), [7]);
    }

    #[test]
    fn v6_a_push_in_flight_while_batches_were_missed_is_looked_up_once_decided() {
        let mut awaited = Awaited::default();
        awaited.ask([1, 2], false);
        awaited.undecided([2]);
        assert_eq!(awaited.unseen(), [0; 0], "neither is known to be accepted");
        assert!(awaited.decided(1, true, 0), "its coming round may have been missed");
        awaited.settled(1, Settled::Materialized(Lsn(9)));
        awaited.ask([2], false);
        assert!(
            awaited.decided(2, true, 0),
            "so may that of one whose answer was lost and that was sent again"
        );
        awaited.settled(2, Settled::Pending);
        awaited.came_round([(2, Lsn(12))]);
        assert_eq!(awaited.announce(AT), [1, 2]);
    }

    #[test]
    fn v6_what_ran_before_the_session_is_looked_up() {
        let mut awaited = Awaited::default();
        awaited.ask([4], false);
        assert!(awaited.decided(4, true, 4));
        awaited.settled(4, Settled::Materialized(Lsn(9)));
        assert_eq!(awaited.announce(AT), [4]);
        awaited.ask([5, 6], true);
        assert_eq!(awaited.unseen(), [5, 6]);
        awaited.settled(5, Settled::Past);
        awaited.settled(6, Settled::Pending);
        assert_eq!(awaited.announce(Point::GenerationStart), [5]);
        assert_eq!(awaited.unseen(), [6]);
    }

    #[test]
    fn v6_a_number_under_way_twice_is_waited_for_though_one_try_ended_undecided() {
        let mut awaited = Awaited::default();
        awaited.ask([8], false);
        awaited.ask([8], false);
        awaited.undecided([8]);
        assert!(awaited.decided(8, true, 0));
        awaited.came_round([(8, Lsn(5))]);
        assert_eq!(awaited.announce(AT), [8]);
        // And one that has come round before its outcome was told.
        awaited.ask([9], false);
        awaited.undecided([9]);
        awaited.came_round([(9, Lsn(6))]);
        assert!(!awaited.decided(9, true, 0));
        assert_eq!(awaited.announce(AT), [9]);
    }
}
