//! `loadtest fanout`: committed rows to many subscribers, every page's digest verified, with an unsafe relay alternating in the
//! same run.

use crate::connection::{Connection, Identity, decode};
use crate::process::{family_cpu_seconds, usage_of};
use crate::replica::{Faults, Replica};
use crate::report::{self, Spread, latencies, micros};
use crate::stage::{Stage, address};
use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_floors::relay::{Relay, column_text};
use tidegate_protocol::{Value, decode_row};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Arguments of `fanout`.
#[derive(Debug, clap::Args)]
pub struct Fanout {
    /// Subscribers, spread evenly over the scopes.
    #[arg(long, default_value_t = 1000)]
    sockets: usize,
    /// Scopes.
    #[arg(long, default_value_t = 10)]
    scopes: usize,
    /// Commits per second, each of one row.
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Seconds of load per round.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rounds; relay and Tidegate alternate in each.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Subscribers that read one frame every 50 ms while the load lasts.
    #[arg(long, default_value_t = 2)]
    slow: usize,
    /// Bytes of payload in each row.
    #[arg(long, default_value_t = 160)]
    payload: usize,
}

/// How long a slow subscriber waits between frames.
const SLOW_PAUSE: Duration = Duration::from_millis(50);
/// How long everyone may take to catch up after the load has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections opened at once: enough to be quick, few enough for the listener's backlog.
const CONNECT_AT_ONCE: usize = 64;
const WRITERS: usize = 4;
const ROWS_PER_SCOPE: usize = 20;
/// Histograms shared by the subscribers, so that a thousand of them need not have one each.
const SHARDS: usize = 8;

#[derive(serde::Serialize)]
struct Report {
    sockets: usize,
    scopes: usize,
    rate: u64,
    seconds: u64,
    rounds: Vec<Round>,
    verified_pages: u64,
    deliveries: u64,
    lost: u64,
    duplicated: u64,
    faults: Faults,
    server_resident_bytes_per_socket: f64,
    kernel_bytes_per_socket_both_ends: f64,
}

#[derive(serde::Serialize)]
struct Round {
    commits: u64,
    deliveries: u64,
    tidegate: Spread,
    relay: Spread,
    /// Of the process that runs both capture and gateway.
    server_cpu_seconds: f64,
    server_cpu_seconds_per_million_deliveries: f64,
    postgres_cpu_seconds: f64,
}

/// What the subscribers share.
struct Shared {
    /// Last sequence number committed, by scope.
    committed: Vec<AtomicI64>,
    loading: AtomicBool,
    ended: AtomicBool,
    latencies: [Mutex<Histogram<u64>>; SHARDS],
    deliveries: AtomicU64,
}

/// What one subscriber saw.
#[derive(Default)]
struct Seen {
    lost: u64,
    duplicated: u64,
    faults: Faults,
    verified_pages: u64,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started; what was lost or duplicated is in the report, and fails the command at the end.
pub async fn run(arguments: &Fanout, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    if arguments.scopes == 0 || arguments.sockets < arguments.scopes {
        bail!("there must be at least one scope, and one socket for each");
    }
    report::say("starting PostgreSQL and Tidegate");
    let stage = Stage::set(binary, major, &[], &schema(arguments.scopes)).await?;
    let server = stage.start(&["dev", "--no-demo", "--listen", "127.0.0.1:0"]).await?;
    let gateway = address(server.ready.url.as_deref().context("the gateway printed no URL")?)?;
    let pid = server.pid().context("the gateway has ended")?;

    let shared = Arc::new(Shared {
        committed: (0..arguments.scopes).map(|_| AtomicI64::new(0)).collect(),
        loading: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        latencies: std::array::from_fn(|_| Mutex::new(latencies())),
        deliveries: AtomicU64::new(0),
    });
    let before = usage_of(pid)?;
    let kernel_before = kernel_socket_bytes();
    let mut subscribers = connect(arguments, &gateway, &shared).await?;
    let resident = usage_of(pid)?.resident_bytes.saturating_sub(before.resident_bytes);
    let kernel = kernel_socket_bytes().saturating_sub(kernel_before);

    let mut rounds = Vec::new();
    let bar = report::progress(arguments.rounds as u64 * 2, "rounds");
    for _ in 0..arguments.rounds {
        let relay = relay_round(&stage, arguments).await?;
        bar.inc(1);
        rounds.push(tidegate_round(&stage, arguments, &shared, pid, relay).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    shared.ended.store(true, Relaxed);

    let mut total = Seen::default();
    while let Some(seen) = subscribers.join_next().await {
        let seen = seen.context("a subscriber panicked")??;
        total.lost += seen.lost;
        total.duplicated += seen.duplicated;
        total.verified_pages += seen.verified_pages;
        total.faults.merge(&seen.faults);
    }
    let report = Report {
        sockets: arguments.sockets,
        scopes: arguments.scopes,
        rate: arguments.rate,
        seconds: arguments.seconds,
        deliveries: rounds.iter().map(|round| round.deliveries).sum(),
        rounds,
        verified_pages: total.verified_pages,
        lost: total.lost,
        duplicated: total.duplicated + total.faults.duplicated,
        server_resident_bytes_per_socket: resident as f64 / arguments.sockets as f64,
        kernel_bytes_per_socket_both_ends: kernel as f64 / arguments.sockets as f64,
        faults: total.faults,
    };
    print(&report, json)?;
    if report.lost + report.duplicated > 0 || !report.faults.is_clean() {
        bail!("something was lost, duplicated or wrong: see the report");
    }
    Ok(())
}

fn schema(scopes: usize) -> String {
    let columns = "(id bigint primary key, scope_no int not null, seq bigint not null, sent_us bigint not null, payload text not null)";
    let rows = format!(
        "select g, g % {scopes}, 0, 0, '' from generate_series(0, {}) g",
        scopes * ROWS_PER_SCOPE - 1
    );
    let grants: String = (0..scopes)
        .map(|scope| {
            format!("select tidegate.register_grant('{{\"scope\": \"item:{scope}\", \"anonymous\": true}}');")
        })
        .collect();
    format!(
        "create schema loadtest;
         create table loadtest.item {columns};
         insert into loadtest.item {rows};
         create table loadtest.relayed {columns};
         insert into loadtest.relayed {rows};
         create publication loadtest_relayed for table loadtest.relayed;
         select tidegate.register_table('loadtest.item', '{{\"scopes\": [{{\"name\": \"item:{{scope_no}}\"}}]}}');
         {grants}"
    )
}

/// Opens all sockets and waits until each has joined its scope.
async fn connect(
    arguments: &Fanout,
    gateway: &str,
    shared: &Arc<Shared>,
) -> anyhow::Result<JoinSet<anyhow::Result<Seen>>> {
    let bar = report::progress(arguments.sockets as u64, "connecting");
    let permits = Arc::new(tokio::sync::Semaphore::new(CONNECT_AT_ONCE));
    let (joined, mut joins) = tokio::sync::mpsc::channel(CONNECT_AT_ONCE);
    let mut subscribers = JoinSet::new();
    for index in 0..arguments.sockets {
        let subscriber = Subscriber {
            index,
            scope: index % arguments.scopes,
            slow: index < arguments.slow,
            shared: Arc::clone(shared),
            gateway: gateway.to_owned(),
        };
        let (permits, joined) = (Arc::clone(&permits), joined.clone());
        subscribers.spawn(async move { subscriber.run(permits, joined).await });
    }
    drop(joined);
    for _ in 0..arguments.sockets {
        tokio::select! {
            join = joins.recv() => join.context("a subscriber ended before it had joined")?,
            Some(ended) = subscribers.join_next() => match ended.context("a subscriber panicked")? {
                Ok(_) => bail!("a subscriber ended before it had joined"),
                Err(error) => return Err(error),
            },
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(subscribers)
}

struct Subscriber {
    index: usize,
    scope: usize,
    slow: bool,
    shared: Arc<Shared>,
    gateway: String,
}

impl Subscriber {
    async fn run(
        self,
        permits: Arc<tokio::sync::Semaphore>,
        joined: tokio::sync::mpsc::Sender<()>,
    ) -> anyhow::Result<Seen> {
        let name = format!("item:{}", self.scope);
        let mut replica = Replica::new(false);
        let permit = permits.acquire_owned().await.context("wait to connect")?;
        let (mut connection, welcome) = Connection::open(&self.gateway, &Identity::fresh(None)).await?;
        connection.subscribe(Some(&name), None).await?;
        let mut last_seq = None;
        let mut seen = Seen::default();
        let mut sign_of_life =
            tokio::time::interval(Duration::from_millis(u64::from(welcome.heartbeat_ms.max(1000)) / 2));
        let mut joining = Some((permit, joined));
        let mut settle_until = None;
        loop {
            let bytes = tokio::select! {
                bytes = connection.next_bytes() => bytes?.context("the gateway closed the socket")?,
                _ = sign_of_life.tick() => {
                    connection.ping().await?;
                    if self.has_all(last_seq) { break }
                    if self.shared.ended.load(Relaxed) && settle_until.get_or_insert(Instant::now() + SETTLE_TIMEOUT) <= &mut Instant::now() { break }
                    continue;
                }
            };
            let is_joined = joining.is_none();
            replica
                .apply(decode(&bytes)?, &mut |_, row| self.observe(row, is_joined, &mut last_seq, &mut seen));
            if joining.is_some() && replica.scopes.get(&name).is_some_and(|scope| scope.joined) {
                // What the rebuild brought is where counting starts.
                last_seq = Some(self.shared.committed[self.scope].load(Relaxed));
                if let Some((_permit, joined)) = joining.take() {
                    joined.send(()).await.context("report the join")?;
                }
            }
            if self.slow && self.shared.loading.load(Relaxed) {
                tokio::time::sleep(SLOW_PAUSE).await;
            }
            if self.has_all(last_seq) {
                break;
            }
        }
        let committed = self.shared.committed[self.scope].load(Relaxed);
        seen.lost += committed.saturating_sub(last_seq.unwrap_or(0)).max(0) as u64;
        seen.faults = replica.faults;
        seen.verified_pages = replica.verified_pages;
        Ok(seen)
    }

    fn has_all(&self, last_seq: Option<i64>) -> bool {
        self.shared.ended.load(Relaxed) && last_seq == Some(self.shared.committed[self.scope].load(Relaxed))
    }

    /// Each scope's commits are numbered without a gap, in commit order.
    fn observe(&self, row: &[u8], joined: bool, last_seq: &mut Option<i64>, seen: &mut Seen) {
        if !joined {
            return;
        }
        let Ok(values) = decode_row(row) else {
            seen.faults.out_of_order += 1;
            return;
        };
        let (Some(Value::Int(seq)), Some(Value::Int(sent_us))) = (values.get(2), values.get(3)) else {
            seen.faults.out_of_order += 1;
            return;
        };
        let expected = last_seq.unwrap_or(0) + 1;
        if *seq < expected {
            seen.duplicated += 1;
            return;
        }
        seen.lost += (*seq - expected) as u64;
        *last_seq = Some(*seq);
        self.shared.deliveries.fetch_add(1, Relaxed);
        if !self.slow {
            let latency = now_us().saturating_sub(*sent_us as u64).clamp(1, 60_000_000);
            if let Ok(mut histogram) = self.shared.latencies[self.index % SHARDS].lock() {
                histogram.saturating_record(latency);
            }
        }
    }
}

/// Commits at the asked rate for the asked time; each scope's commits come from one connection, in order.
async fn load(
    stage: &Stage,
    arguments: &Fanout,
    table: &'static str,
    committed: Arc<Vec<AtomicI64>>,
) -> anyhow::Result<u64> {
    let payload: String = "x".repeat(arguments.payload);
    let statement = format!("update loadtest.{table} set seq = $1, sent_us = $2, payload = $3 where id = $4");
    let total = arguments.rate * arguments.seconds;
    let started = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (pool, statement, payload, committed) =
            (stage.pool.clone(), statement.clone(), payload.clone(), Arc::clone(&committed));
        let (scopes, rate) = (arguments.scopes as u64, arguments.rate);
        writers.spawn(async move {
            let mut connection = pool.acquire().await.context("connect a writer")?;
            for commit in 0..total {
                let scope = (commit % scopes) as usize;
                if scope % WRITERS != writer {
                    continue;
                }
                tokio::time::sleep_until(started + Duration::from_micros(commit * 1_000_000 / rate)).await;
                let seq = committed[scope].load(Relaxed) + 1;
                let row = scope as i64 + (seq % ROWS_PER_SCOPE as i64) * scopes as i64;
                sqlx::query(sqlx::AssertSqlSafe(statement.clone()))
                    .bind(seq)
                    .bind(now_us() as i64)
                    .bind(&payload)
                    .bind(row)
                    .execute(&mut *connection)
                    .await
                    .context("commit a row")?;
                committed[scope].store(seq, Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.context("a writer panicked")??;
    }
    Ok(total)
}

async fn tidegate_round(
    stage: &Stage,
    arguments: &Fanout,
    shared: &Arc<Shared>,
    pid: u32,
    relay: Spread,
) -> anyhow::Result<Round> {
    for histogram in &shared.latencies {
        histogram.lock().map_err(|_| anyhow::anyhow!("a subscriber panicked"))?.reset();
    }
    let deliveries_before = shared.deliveries.load(Relaxed);
    let (before, postgres_before) = (usage_of(pid)?, family_cpu_seconds(stage.server.pid()?)?);
    shared.loading.store(true, Relaxed);
    let committed: Arc<Vec<AtomicI64>> =
        Arc::new(shared.committed.iter().map(|seq| AtomicI64::new(seq.load(Relaxed))).collect());
    let commits = load(stage, arguments, "item", Arc::clone(&committed)).await?;
    for (shared, committed) in shared.committed.iter().zip(committed.iter()) {
        shared.store(committed.load(Relaxed), Relaxed);
    }
    shared.loading.store(false, Relaxed);
    let expected = deliveries_before + commits / arguments.scopes as u64 * arguments.sockets as u64;
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    while shared.deliveries.load(Relaxed) < expected && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (after, postgres_after) = (usage_of(pid)?, family_cpu_seconds(stage.server.pid()?)?);
    let deliveries = shared.deliveries.load(Relaxed) - deliveries_before;
    let mut all = latencies();
    for histogram in &shared.latencies {
        all.add(&*histogram.lock().map_err(|_| anyhow::anyhow!("a subscriber panicked"))?)
            .context("add up latencies")?;
    }
    let cpu = after.cpu_seconds - before.cpu_seconds;
    Ok(Round {
        commits,
        deliveries,
        tidegate: Spread::from(&all),
        relay,
        server_cpu_seconds: cpu,
        server_cpu_seconds_per_million_deliveries: cpu * 1e6 / deliveries.max(1) as f64,
        postgres_cpu_seconds: postgres_after - postgres_before,
    })
}

/// The same load on an unregistered table, through the relay to one reader.
async fn relay_round(stage: &Stage, arguments: &Fanout) -> anyhow::Result<Spread> {
    let relay = Relay::start(&stage.server.database("loadtest"), "loadtest_relayed").await?;
    let mut socket = tokio::net::TcpStream::connect(relay.address).await.context("connect to the relay")?;
    let reader = tokio::spawn(async move {
        let mut histogram = latencies();
        let mut message = Vec::new();
        while let Ok(length) = socket.read_u32().await {
            message.resize(length as usize, 0);
            socket.read_exact(&mut message).await.context("read from the relay")?;
            if let Some(sent) = column_text(&message, 3).and_then(|text| text.parse::<u64>().ok()) {
                histogram.saturating_record(micros(Duration::from_micros(now_us().saturating_sub(sent))));
            }
        }
        anyhow::Ok(histogram)
    });
    let committed = Arc::new((0..arguments.scopes).map(|_| AtomicI64::new(0)).collect());
    load(stage, arguments, "relayed", committed).await?;
    drop(relay);
    let histogram = reader.await.context("the relay's reader panicked")??;
    Ok(Spread::from(&histogram))
}

/// Memory that the kernel holds in TCP buffers, on both ends since both are on this machine.
fn kernel_socket_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = line
        .split_whitespace()
        .skip_while(|word| *word != "mem")
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!("{} sockets, {} scopes, {} commits/s", report.sockets, report.scopes, report.rate);
    for round in &report.rounds {
        println!(
            "tidegate p50 {:.2} ms p99 {:.2} ms   unsafe relay p50 {:.2} ms p99 {:.2} ms   {} deliveries, {:.2} CPU-s per million",
            round.tidegate.p50_ms,
            round.tidegate.p99_ms,
            round.relay.p50_ms,
            round.relay.p99_ms,
            round.deliveries,
            round.server_cpu_seconds_per_million_deliveries
        );
    }
    println!(
        "verified pages {}   lost {}   duplicated {}   server memory per socket {:.1} KiB",
        report.verified_pages,
        report.lost,
        report.duplicated,
        report.server_resident_bytes_per_socket / 1024.0
    );
    Ok(())
}
