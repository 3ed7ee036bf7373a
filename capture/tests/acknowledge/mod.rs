//! A: what the slot is told, and when.

mod boundary;
mod idle;
mod order;
mod quiet;
mod reconnect;
mod slow;
mod startup;
