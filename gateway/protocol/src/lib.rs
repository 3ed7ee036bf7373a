//! Tidegate's wire protocol: frames, codes, golden vectors.
