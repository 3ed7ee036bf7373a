//! The gateway against a real PostgreSQL, 15 and 18.

mod auth;
mod fixture;
mod push;
mod push_failures;
mod push_refusals;
mod push_values;
mod readiness;
