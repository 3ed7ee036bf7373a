//! perf-C3: sixteen writers while the worker runs, first paced at half of what they can do alone, then flat out.

use super::ground;
use crate::report::{self, Series};
use crate::stage::Stage;
use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_floors::pgbench::{self, Bench, Benched, End};

const WRITERS: u32 = 16;
/// Between two looks at the lag.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// How long the worker may take until it has caught up.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(600);

/// What came out.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Live {
    /// Transactions per second of the writers alone, flat out: the registered table, no worker.
    pub alone_tps: Series,
    /// The pace: half of the median of that.
    pub pace_tps: f64,
    /// At that pace without a worker: what they reached, and how long a transaction took.
    pub paced_alone_tps: Series,
    pub paced_alone_latency_ms: Series,
    /// The same with the worker running.
    pub paced_tps: Series,
    pub paced_latency_ms: Series,
    /// Lag while paced, in seconds: how long ago the newest durable transaction was committed. Median of all samples, and the worst of
    /// each round.
    pub paced_lag_median_s: Series,
    pub paced_lag_max_s: Series,
    /// Flat out with the worker running.
    pub flat_out_tps: Series,
    pub flat_out_lag_max_s: Series,
    /// From the writers' end until everything was durable, in seconds.
    pub flat_out_catch_up_s: Series,
    /// The worker's most resident memory, in bytes.
    pub memory_max_bytes: u64,
    /// Transactions that all of this committed.
    pub transactions: u64,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started, or the worker does not catch up.
pub async fn run(stage: &Stage, rounds: usize, seconds: u64, rows: u64) -> anyhow::Result<Live> {
    let script = format!(
        "\\set id random(1, {rows})\nupdate loadtest.change set counter = counter + 1 where id = :id;\n"
    );
    let end = End::After(Duration::from_secs(seconds));
    let bench = |rate| Bench { script: &script, clients: WRITERS, end, rate, synchronous: true };
    let write = async |rate| pgbench::run(&stage.server, stage.database(), &bench(rate)).await;
    let bar = report::progress(rounds as u64 * 4, "live writers");
    let mut transactions = 0;
    let mut alone = Vec::new();
    for _ in 0..rounds {
        alone.push(write(None).await?);
        bar.inc(1);
    }
    transactions += alone.iter().map(|benched| benched.transactions).sum::<u64>();
    let alone_tps = series(&alone, |benched| benched.tps);
    let pace = alone_tps.median / 2.0;
    let (mut paced_alone, mut paced, mut flat_out) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lag_medians, mut lag_maxima, mut flat_lags, mut catch_ups) = (vec![], vec![], vec![], vec![]);
    let mut memory_max_bytes = 0;
    for _ in 0..rounds {
        ground::tidy(stage).await?;
        paced_alone.push(write(Some(pace)).await?);
        bar.inc(1);
        let mut worker = stage.start(&["capture"]).await.context("start capture")?;
        caught_up(stage).await?;
        let lag = Lag::watch(stage);
        paced.push(write(Some(pace)).await?);
        let seen = lag.stop().await?;
        lag_medians.push(seen.median);
        lag_maxima.push(seen.max);
        bar.inc(1);
        caught_up(stage).await?;
        let lag = Lag::watch(stage);
        flat_out.push(write(None).await?);
        flat_lags.push(lag.stop().await?.max);
        catch_ups.push(caught_up(stage).await?.as_secs_f64());
        memory_max_bytes = memory_max_bytes.max(worker.usage()?.resident_max_bytes);
        worker.stop().await.context("stop capture")?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    transactions +=
        paced_alone.iter().chain(&paced).chain(&flat_out).map(|benched| benched.transactions).sum::<u64>();
    Ok(Live {
        alone_tps,
        pace_tps: pace,
        paced_alone_tps: series(&paced_alone, |benched| benched.tps),
        paced_alone_latency_ms: series(&paced_alone, |benched| benched.latency_ms),
        paced_tps: series(&paced, |benched| benched.tps),
        paced_latency_ms: series(&paced, |benched| benched.latency_ms),
        paced_lag_median_s: lag_medians.into(),
        paced_lag_max_s: lag_maxima.into(),
        flat_out_tps: series(&flat_out, |benched| benched.tps),
        flat_out_lag_max_s: flat_lags.into(),
        flat_out_catch_up_s: catch_ups.into(),
        memory_max_bytes,
        transactions,
    })
}

fn series(runs: &[Benched], figure: impl Fn(&Benched) -> f64) -> Series {
    runs.iter().map(figure).collect::<Vec<f64>>().into()
}

/// Waits until what has been committed by now is durable, and says how long that took.
async fn caught_up(stage: &Stage) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let finish = ground::finish_line(stage).await?;
    let wait = async {
        loop {
            let done: bool =
                sqlx::query_scalar("select processed_end_lsn > $1::pg_lsn from tidegate.progress")
                    .bind(&finish)
                    .fetch_one(&stage.pool)
                    .await
                    .context("read progress")?;
            if done {
                return anyhow::Ok(started.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(CATCH_UP_LIMIT, wait).await.context("catch up in time")?
}

/// A watch on the lag, while somebody writes without pause.
struct Lag {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<anyhow::Result<Vec<f64>>>,
}

struct Seen {
    median: f64,
    max: f64,
}

impl Lag {
    fn watch(stage: &Stage) -> Lag {
        let (pool, stop) = (stage.pool.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut samples = Vec::new();
            // The first transactions are on their way.
            tokio::time::sleep(SAMPLE_EVERY * 5).await;
            while !stopped.load(Relaxed) {
                let lag: f64 = sqlx::query_scalar(
                    "select extract(epoch from clock_timestamp() - t.committed_at)::float8 from tidegate.progress p
                     join tidegate.source_transaction t on t.generation = p.generation and t.commit_lsn = p.materialized_commit_lsn",
                )
                .fetch_one(&pool)
                .await
                .context("look at the lag")?;
                samples.push(lag);
                tokio::time::sleep(SAMPLE_EVERY).await;
            }
            // The last look may have come after the writers' end, when nothing is newer.
            samples.pop();
            Ok(samples)
        });
        Lag { stop, task }
    }

    async fn stop(self) -> anyhow::Result<Seen> {
        self.stop.store(true, Relaxed);
        let series = Series::from(self.task.await.context("the lag's watch panicked")??);
        Ok(Seen { median: series.median, max: series.max })
    }
}
