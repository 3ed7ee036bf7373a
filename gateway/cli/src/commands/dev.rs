//! `tidegate dev`: everything in one process, from nothing.
