//! Randomness, injected so that a seed replays a run.

/// A source of random bytes. On a real machine it is the kernel's generator.
pub trait Entropy: Send + Sync {
    /// Fill `out`.
    fn fill(&self, out: &mut [u8]);

    /// Sixteen random bytes.
    fn bytes16(&self) -> [u8; 16] {
        let mut b = [0; 16];
        self.fill(&mut b);
        b
    }
}
