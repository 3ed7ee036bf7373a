//! How many of something a client may do per second. Time comes in as a value.

use std::time::{Duration, Instant};

/// A bucket that fills at a steady rate up to two seconds' worth.
#[derive(Debug)]
pub(super) struct Rate {
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Rate {
    pub fn new(per_second: u32, now: Instant) -> Rate {
        let per_second = f64::from(per_second);
        Rate { per_second, left: per_second * 2.0, at: now }
    }

    /// Takes `count`, or says how long to wait. More than a full bucket is taken from a full one.
    pub fn take(&mut self, count: usize, now: Instant) -> Result<(), Duration> {
        let full = self.per_second * 2.0;
        self.left = (self.left + now.duration_since(self.at).as_secs_f64() * self.per_second).min(full);
        self.at = now;
        let wanted = (count as f64).min(full);
        if wanted <= self.left {
            self.left -= wanted;
            Ok(())
        } else {
            Err(Duration::from_secs_f64((wanted - self.left) / self.per_second))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = Rate::new(10, start);
        assert_eq!(rate.take(20, start), Ok(()));
        assert_eq!(rate.take(5, start), Err(Duration::from_millis(500)));
        assert_eq!(rate.take(5, start + Duration::from_millis(500)), Ok(()));
        assert_eq!(
            rate.take(1000, start + Duration::from_secs(60)),
            Ok(()),
            "a large batch only needs a full bucket"
        );
    }
}
