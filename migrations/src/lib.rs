//! Tidegate's SQL schema and the gated loader that installs it.
