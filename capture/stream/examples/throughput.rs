//! How fast the core is by itself, and how much memory a large transaction takes: no database, answers from memory.
//!
//! `cargo run --release -p tidegate-stream --example throughput -- [rows per transaction] [transactions]`; a single transaction is
//! only inserted and nothing of it is kept, so that the peak shows what the core itself takes.

#[path = "../tests/frames.rs"]
#[allow(dead_code, missing_docs)]
mod frames;
#[path = "../tests/source.rs"]
#[allow(dead_code, missing_docs)]
mod source;

use source::{Change, Source, item};
use std::time::{Duration, Instant};
use tidegate_model::{RowDigest, RowVersion, ScopeId};
use tidegate_stream::*;

/// Plays the projection: rows by key, scopes by name.
#[derive(Default)]
struct Memory {
    rows: std::collections::HashMap<Vec<u8>, OldRow>,
    scopes: std::collections::HashMap<String, (i64, ScopeTotals)>,
    forgets: bool,
}

#[derive(Default)]
struct Spent {
    assemble: Duration,
    pair: Duration,
    project: Duration,
    finish: Duration,
    answer: Duration,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let rows = arguments.next().unwrap_or(1000);
    let transactions = arguments.next().unwrap_or(100);
    let mut source = Source::default();
    let mut memory = Memory::default();
    let mut assembler = Assembler::new(source::fixture(), Limits::default(), file_spools());
    let operations = [("inserts", 'I'), ("updates", 'U'), ("deletes", 'D')];
    memory.forgets = transactions == 1;
    for (name, operation) in &operations[..if memory.forgets { 1 } else { 3 }] {
        let mut spent = Spent::default();
        for number in 0..transactions {
            let first = number * rows;
            run(&mut source, &mut assembler, &mut memory, &mut spent, *operation, first..first + rows);
        }
        let total = spent.assemble + spent.pair + spent.project + spent.finish;
        let changes = rows * transactions;
        let each = |part: Duration| part.as_nanos() as u64 / changes;
        println!(
            "{name}: {:.0} changes/s; ns per change: assemble {}, pair {}, project {}, finish {} (answering {}); peak {} MiB",
            changes as f64 / total.as_secs_f64(),
            each(spent.assemble),
            each(spent.pair),
            each(spent.project),
            each(spent.finish),
            each(spent.answer),
            peak_mib(),
        );
    }
}

fn run(
    source: &mut Source,
    assembler: &mut Assembler,
    memory: &mut Memory,
    spent: &mut Spent,
    operation: char,
    ids: std::ops::Range<u64>,
) {
    let list = |id: u64| format!("L{}", id % 1000);
    let change = |id: u64| -> Change {
        item(operation, id as i64, Some(&list(id)), "a title of some forty characters, or so", 1)
    };
    let commit_lsn = 1_000_000 + source.tick();
    let start = Instant::now();
    assembler.frame(&frames::begin(commit_lsn, 7)).unwrap_or_else(|error| panic!("{error}"));
    assembler.frame(&source::describe(source::ITEM)).unwrap_or_else(|error| panic!("{error}"));
    spent.assemble += start.elapsed();
    // Statements of a thousand rows: rows first, then fences, and never all frames in memory.
    for from in ids.clone().step_by(1000) {
        let changes: Vec<Change> = (from..(from + 1000).min(ids.end)).map(change).collect();
        let mut frames: Vec<Vec<u8>> = changes.iter().map(Change::frame).collect();
        frames.extend(changes.iter().map(|change| source.fence(change).frame()));
        let start = Instant::now();
        for frame in &frames {
            assembler.frame(frame).unwrap_or_else(|error| panic!("{error}"));
        }
        spent.assemble += start.elapsed();
    }
    let start = Instant::now();
    let step = assembler.frame(&frames::commit(commit_lsn)).unwrap_or_else(|error| panic!("{error}"));
    let Step::Transaction(transaction) = step else { panic!("a transaction") };
    spent.assemble += start.elapsed();
    let start = Instant::now();
    let mut paired = transaction.pair().unwrap_or_else(|error| panic!("{error}"));
    spent.pair += start.elapsed();
    let mut carry = Carry::default();
    loop {
        let start = Instant::now();
        let piece = paired.next_piece(&PieceLimits::default()).unwrap_or_else(|error| panic!("{error}"));
        let Some(piece) = piece else { break };
        let mut batch = Batch::resume(carry);
        batch.push(piece);
        let needs = batch.row_needs();
        spent.project += start.elapsed();
        let start = Instant::now();
        for needs in needs.relations {
            for key in needs.present {
                if let Some(old) = memory.rows.get(&key[..]) {
                    batch.provide_row(needs.relation, &key, old.clone());
                }
            }
        }
        spent.answer += start.elapsed();
        let start = Instant::now();
        let batch = batch.project().unwrap_or_else(|failure| panic!("{failure}"));
        spent.project += start.elapsed();
        let start = Instant::now();
        let answers = memory.answer(batch.needs());
        spent.answer += start.elapsed();
        let start = Instant::now();
        let (writes, next) = batch.finish(answers).unwrap_or_else(|failure| panic!("{failure}"));
        spent.finish += start.elapsed();
        carry = next;
        memory.keep(writes);
    }
}

impl Memory {
    fn answer(&mut self, needs: &ScopeNeeds) -> ScopeAnswers {
        let by_id: std::collections::HashMap<i64, ScopeTotals> = self.scopes.values().copied().collect();
        let ids = needs.ids.iter().map(|id| by_id.get(&id.0).copied()).collect();
        let mut names = Vec::new();
        for named in &needs.names {
            let fresh = self.scopes.len() as i64;
            let stored = self.scopes.get(&named.name.0).copied();
            let id = stored.map_or(fresh, |stored| stored.0);
            self.scopes.entry(named.name.0.clone()).or_insert((id, ScopeTotals::default()));
            names.push(ScopeAnswer { id: ScopeId(id), stored: stored.map(|stored| stored.1) });
        }
        ScopeAnswers { ids, names, pairs: vec![0; needs.pairs.len()] }
    }

    fn keep(&mut self, writes: Writes) {
        for columns in [&writes.new_scopes.totals, &writes.scopes] {
            let totals: std::collections::HashMap<i64, ScopeTotals> = (0..columns.scope_id.len())
                .map(|at| {
                    let digest = tidegate_model::ScopeDigest(u128::from_be_bytes(columns.digest[at]));
                    (columns.scope_id[at], ScopeTotals { row_count: columns.row_count[at], digest })
                })
                .collect();
            self.scopes
                .values_mut()
                .for_each(|(id, stored)| *stored = totals.get(id).copied().unwrap_or(*stored));
        }
        if self.forgets {
            return;
        }
        for projection in writes.projections {
            for columns in [&projection.insert, &projection.update] {
                for at in 0..columns.key_index.len() {
                    let ids = columns.scope_ids[at]
                        .trim_matches(['{', '}'])
                        .split(',')
                        .filter_map(|id| id.parse().ok());
                    let old = OldRow {
                        version: RowVersion(columns.version[at]),
                        row: columns.row[at].to_vec().into(),
                        digest: RowDigest(columns.digest[at]),
                        scopes: ids.map(ScopeId).collect(),
                        grants: Vec::new(),
                    };
                    self.rows.insert(columns.key_index[at].to_vec(), old);
                }
            }
            projection.delete.iter().for_each(|key| drop(self.rows.remove(&key[..])));
        }
    }
}

fn file_spools() -> SpoolFactory {
    Box::new(|| {
        let path = std::env::temp_dir().join(format!("tidegate-throughput-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Box::new(FileSpool::new(file)))
    })
}

/// Peak resident memory of this process.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) / 1024
}
