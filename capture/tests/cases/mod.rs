//! Failures of systems like ours, each by its repro, on lists and their items.

mod dt01;
mod dt02;
mod dt08;
mod tx01;
mod tx02;
mod tx03;
mod tx05;
mod tx06;
