//! The worker against real PostgreSQL servers: tests write through SQL and read what materialization left in the tables.

mod flow;
mod world;
