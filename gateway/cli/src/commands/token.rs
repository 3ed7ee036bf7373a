//! `tidegate token`: an access token for a user, for development and scripts.

use crate::args::{Args, Token};
use crate::{output, secret};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Prints the token, and nothing else, so that it can be put into a variable.
pub fn run(args: &Args, token: &Token) -> anyhow::Result<ExitCode> {
    let secret = secret::given_or_dev(token.jwt_secret.as_deref(), &args.data)?;
    let minted = tidegate_gateway::auth::mint_token(
        secret.as_bytes(),
        &token.user,
        Duration::from_secs(token.valid_seconds),
        &serde_json::Map::new(),
        SystemTime::now(),
    )?;
    output::print(
        args,
        &serde_json::json!({ "token": minted, "user": token.user, "valid_seconds": token.valid_seconds }),
        || minted.clone(),
    );
    Ok(ExitCode::SUCCESS)
}
