use std::sync::{Arc, Mutex};
use tidegate_log::{Batch, Bounds, OrderedLog, WakeSender, Wakes, conformance, wakes};

/// Units of order, each with its entries: position `n` is the end of unit `n`.
struct Memory {
    units: Mutex<Vec<Vec<(u32, u64)>>>,
    wake: WakeSender<u64>,
}

struct Read {
    after: u64,
    through: u64,
    at_tip: bool,
    entries: Vec<(u32, u64)>,
}

impl Batch for Read {
    type Position = u64;
    fn through(&self) -> &u64 {
        &self.through
    }
    fn at_tip(&self) -> bool {
        self.at_tip
    }
    fn is_empty(&self) -> bool {
        self.after == self.through
    }
}

impl OrderedLog for Memory {
    type Position = u64;
    type StreamPosition = (u64, usize);
    type Stream = u32;
    type Batch = Read;
    type StreamBatch = Vec<(u64, (u64, usize))>;
    type Error = std::convert::Infallible;

    async fn read_all(&self, from: &u64, bounds: Bounds) -> Result<Read, Self::Error> {
        let units = self.units.lock().expect("no panic while locked");
        let mut read = Read { after: *from, through: *from, at_tip: true, entries: Vec::new() };
        for unit in units.iter().skip(*from as usize) {
            let first = read.through == *from;
            let fits = read.through - *from < u64::from(bounds.units_max)
                && read.entries.len() + unit.len() <= bounds.entries_max as usize;
            if !first && !fits {
                read.at_tip = false;
                break;
            }
            read.entries.extend(unit);
            read.through += 1;
        }
        Ok(read)
    }

    async fn read_stream(
        &self,
        stream: &u32,
        from: &(u64, usize),
        through: &u64,
        bounds: Bounds,
    ) -> Result<Self::StreamBatch, Self::Error> {
        let units = self.units.lock().expect("no panic while locked");
        let entries = units.iter().zip(1..=*through).flat_map(|(unit, position)| {
            unit.iter().enumerate().map(move |(i, (stream, mark))| (*stream, *mark, (position, i)))
        });
        Ok(entries
            .filter(|(s, _, position)| s == stream && position >= from)
            .map(|(_, mark, position)| (mark, position))
            .take(bounds.entries_max as usize)
            .collect())
    }

    fn wakes(&self) -> Wakes<u64> {
        self.wake.subscribe()
    }
}

struct Fixture(Arc<Memory>);

impl conformance::Subject for Fixture {
    type Log = Memory;

    fn log(&self) -> Arc<Memory> {
        self.0.clone()
    }
    fn start(&self) -> u64 {
        0
    }
    async fn append(&self, marks: &[(u32, u64)], wake: bool) {
        let position = {
            let mut units = self.0.units.lock().expect("no panic while locked");
            units.push(marks.to_vec());
            units.len() as u64
        };
        if wake {
            self.0.wake.wake_at(position);
        }
    }
    fn marks(&self, batch: &Read) -> Vec<(u32, u64)> {
        batch.entries.clone()
    }
    async fn stream(&self, number: u32) -> u32 {
        number
    }
    fn stream_marks(&self, batch: &Vec<(u64, (u64, usize))>) -> Vec<(u64, (u64, usize))> {
        batch.clone()
    }
    fn stream_start(&self) -> (u64, usize) {
        (0, 0)
    }
}

#[tokio::test]
async fn s6_the_suite_passes_on_a_log_in_memory() {
    let (wake, _) = wakes();
    conformance::all(&Fixture(Arc::new(Memory { units: Mutex::default(), wake }))).await;
}

#[tokio::test]
async fn s5_a_wake_during_a_scan_is_not_lost_and_one_for_the_past_is_ignored() {
    let (sender, mut wakes) = wakes::<u64>();
    wakes.arm();
    sender.wake_at(5);
    wakes.beyond(&4).await;
    // Armed or not, what lies at or before the position is no reason to look.
    let waited = tokio::time::timeout(std::time::Duration::from_millis(5), wakes.beyond(&5)).await;
    assert!(waited.is_err());
    sender.wake();
    wakes.beyond(&5).await;
}
