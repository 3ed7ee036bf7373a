//! `tidegate reset`: authorizes that the stream starts anew (Q3). The worker carries it out.

use crate::args::{Args, Reset};
use crate::{connect, output, target};
use anyhow::{Context, bail};
use serde_json::json;
use sqlx::PgConnection;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tidegate_capture::reset::{self, ResetRequest};

/// Tables that are named; the rest is counted.
const TABLES_SHOWN: usize = 20;

/// Asks on a terminal unless told not to, then requests it. Audited by the library (Q5).
pub async fn run(args: &Args, wanted: &Reset) -> anyhow::Result<ExitCode> {
    let mut connection = target::connect(args).await?;
    connect::require_schema(&mut connection).await?;
    if !wanted.yes {
        eprint!("{}", what_it_does(&mut connection).await?);
        if !std::io::stdin().is_terminal() {
            bail!("nobody can be asked here: pass --yes to reset the stream");
        }
        if !confirmed()? {
            bail!("nothing was changed");
        }
    }
    match reset::request(&mut connection, &super::operator(), &wanted.reason).await? {
        ResetRequest::Accepted(id) => output::print(args, &json!({ "reset": "accepted", "id": id }), || {
            format!(
                "reset {id} is requested: a running worker carries it out now, else the next `tidegate capture`; `tidegate status` tells when the stream is ready"
            )
        }),
        ResetRequest::UnderWay(id) => bail!("reset {id} is under way already"),
        ResetRequest::NoStream => {
            bail!("there is no stream to reset: the first `tidegate capture` makes one")
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn what_it_does(connection: &mut PgConnection) -> anyhow::Result<String> {
    let sizes: Vec<(String, i64)> = sqlx::query_as(
        "select format('%I.%I', schema_name, table_name), coalesce(pg_total_relation_size(relation_oid), 0)
         from tidegate.relation where state <> 'removed' order by 2 desc, 1",
    )
    .fetch_all(connection)
    .await
    .context("look at the registered tables")?;
    let total = sizes.iter().map(|(_, bytes)| bytes).sum();
    let mut text = format!(
        "A reset starts the stream anew:\n  the worker copies all {} registered tables again ({}),\n  every client rebuilds everything that it shows,\n  the old stream stays as it is until the new one is active.\n\n",
        sizes.len(),
        size(total)
    );
    for (table, bytes) in sizes.iter().take(TABLES_SHOWN) {
        text += &format!("  {:>9}  {table}\n", size(*bytes));
    }
    if sizes.len() > TABLES_SHOWN {
        text += &format!("  and {} more\n", sizes.len() - TABLES_SHOWN);
    }
    Ok(text)
}

fn confirmed() -> anyhow::Result<bool> {
    eprint!("\nReset the stream? [y/N] ");
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Bytes in the unit that leaves one to four digits.
fn size(bytes: i64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut rest = bytes;
    let mut unit = 0;
    while rest >= 10_240 && unit + 1 < units.len() {
        rest /= 1024;
        unit += 1;
    }
    format!("{rest} {}", units[unit])
}
