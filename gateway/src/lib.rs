//! The gateway: one tail of the effect log, turned into pages once and handed to every subscribed socket; pushes run as a
//! database role and answered with durable outcomes.
//!
//! It holds no truth: whatever it has in memory can be read again from PostgreSQL, so a lost hint, a dropped window or a
//! restart costs latency, never data. Gateway and capture never import each other; they meet in PostgreSQL.

pub mod auth;
pub mod catch_up;
pub mod config;
pub mod failpoints;
mod gateway;
pub mod grants;
pub mod http;
pub mod hub;
pub mod metrics;
pub mod push;
pub mod readiness;
pub mod rebuild;
pub mod registry;
pub mod session;
pub mod socket;

pub use config::{Config, Limits};
pub use gateway::{Gateway, GatewayError, serve};
