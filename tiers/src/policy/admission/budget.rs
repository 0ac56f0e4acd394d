//! The budget of writes: bytes that may be written to SSD. The caller grants bytes as time passes,
//! and counts the bytes that are written, those that reclaim moves included.
//!
//! Invariant: `balance_bytes` is bytes granted less bytes written, at most `swing_bytes`, and not
//! much below `-swing_bytes` as long as the budget limits all writes. So over any time
//! the bytes written exceed those granted by little more than 2 swings, 4 % of the SSD.

use super::policy_key::PolicyKey;

/// Part of the SSD's bytes by which the written bytes may differ from the granted ones.
const SWING_SHARE: u64 = 50;

/// A budget.
#[derive(Clone, Debug)]
pub(super) struct WriteBudget {
    balance_bytes: i64,
    swing_bytes: i64,
}

impl WriteBudget {
    /// A balanced budget for an SSD of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> WriteBudget {
        let swing = (capacity / SWING_SHARE).clamp(1, i64::MAX as u64 / 4);
        WriteBudget { balance_bytes: 0, swing_bytes: swing as i64 }
    }

    /// Grant bytes. Those beyond a swing are lost: a pause of writes allows no burst after it.
    pub(super) fn grant(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.balance_bytes = self.balance_bytes.saturating_add(bytes).min(self.swing_bytes);
    }

    /// Count bytes that were written.
    pub(super) fn spend(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.balance_bytes = self.balance_bytes.saturating_sub(bytes);
    }

    /// Whether a page may be written. Pages that were touched before may, down to a debt of a
    /// swing. Of the others a share of the chains may, which falls from all to none as the balance
    /// falls from a swing to none. The hash of the first unknown
    /// page of a chain decides for all of it: a chain is written as a whole or not at all.
    pub(super) fn allows(&self, touched_before: bool, chain: PolicyKey) -> bool {
        if touched_before {
            return self.balance_bytes > -self.swing_bytes;
        }
        let share = self.balance_bytes as f64 / self.swing_bytes as f64;
        (chain.0 >> 11) as f64 / (1_u64 << 53) as f64 <= share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that scatters.
    fn page(n: u64) -> PolicyKey {
        PolicyKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn written_bytes_follow_granted_bytes_for_any_mix_of_pages() {
        let capacity = 1 << 20;
        for touched_share in [0, 3, 10] {
            let mut budget = WriteBudget::new(capacity);
            let (mut granted, mut written) = (0_u64, 0_u64);
            for n in 0..100_000 {
                granted += 30;
                budget.grant(30);
                if budget.allows(n % 10 < touched_share, page(n)) {
                    written += 100;
                    budget.spend(100);
                }
            }
            let difference = granted.abs_diff(written);
            assert!(difference < capacity / 20, "{touched_share} {granted} {written}");
        }
    }

    #[test]
    fn pages_touched_before_come_first() {
        let mut budget = WriteBudget::new(5_000);
        let allowed = |budget: &WriteBudget, touched| {
            (0..1000).filter(|n| budget.allows(touched, page(*n))).count()
        };
        budget.grant(50);
        let half = allowed(&budget, false);
        assert!((400..600).contains(&half), "half={half}");
        assert_eq!(allowed(&budget, true), 1000);
        budget.spend(60);
        assert_eq!((allowed(&budget, false), allowed(&budget, true)), (0, 1000));
        budget.spend(90);
        assert_eq!(allowed(&budget, true), 0, "the debt is a swing");
    }

    #[test]
    fn pause_of_writes_allows_no_burst() {
        let mut budget = WriteBudget::new(8_000);
        budget.grant(1 << 40);
        let mut written = 0;
        while budget.allows(true, page(1)) {
            budget.spend(10);
            written += 10;
        }
        assert!(written <= 8_000 / 20, "written={written}");
    }
}
