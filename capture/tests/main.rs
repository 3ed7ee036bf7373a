//! The worker against real PostgreSQL servers: tests write through SQL and read what materialization left in the tables.

mod acknowledge;
mod baseline;
mod cases;
mod crash;
mod drift;
mod flow;
mod grouping;
mod killed;
mod large;
mod ownership;
mod poison;
mod reset;
mod unreadable;
mod world;
