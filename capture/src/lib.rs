//! The capture worker: reads the WAL and materializes effects.
