//! The worker against real PostgreSQL servers: tests write through SQL and read what materialization left in the tables.

mod acknowledge;
mod baseline;
mod candidate;
mod cases;
mod crash;
mod drift;
mod flow;
mod grouping;
mod killed;
mod large;
mod ownership;
mod poison;
mod positions;
mod registry;
mod replay;
mod reset;
mod retention;
mod serial;
mod silence;
mod unreadable;
mod world;
