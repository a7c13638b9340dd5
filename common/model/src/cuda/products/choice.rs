//! What was found out about the products of one matrix.

/// What a kernel must be faster by than the one it replaces. In a trial all run at one clock; but one that does the work in
/// fewer cycles draws more power in each, and where power is the limit the clock then falls by most of what was won (on an
/// H200, 8 % in a trial are 2 to 3 % without end).
const MARGIN: f64 = 0.04;

/// The kernel for products of so many rows or a few less, none if libtorch's own is.
#[derive(Clone, Copy)]
pub(super) struct Choice<K> {
    rows: usize,
    kernel: Option<K>,
}

impl<K: Copy> Choice<K> {
    /// Of kernels with their times on `rows` rows, where libtorch's took `own`.
    pub(super) fn new(rows: usize, own: f64, timed: impl IntoIterator<Item = (K, f64)>) -> Choice<K> {
        let fastest = timed.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
        let kernel = fastest.filter(|(_, time)| *time < own * (1.0 - MARGIN)).map(|(kernel, _)| kernel);
        Choice { rows, kernel }
    }

    /// Whether it says something about that many rows; about more than were tried it does not.
    pub(super) fn covers(&self, rows: usize) -> bool {
        rows <= self.rows
    }

    /// The kernel for that many rows, if another than libtorch's. Kernels differ in how well their tiles fill the GPU, so
    /// far fewer rows are left to the heuristics, which know that.
    pub(super) fn kernel(&self, rows: usize) -> Option<K> {
        self.kernel.filter(|_| 16 * rows >= 15 * self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_taken_if_it_wins_clearly() {
        let kernel = |timed: &[(char, f64)]| Choice::new(160, 1.0, timed.iter().copied()).kernel(160);
        assert_eq!(kernel(&[('a', 0.96), ('b', 0.95), ('c', 1.1)]), Some('b'));
        assert_eq!(kernel(&[('a', 0.97), ('b', 0.98)]), None);
        assert_eq!(kernel(&[('a', f64::NAN), ('b', 0.9)]), Some('b'));
        assert_eq!(kernel(&[('a', f64::NAN)]), None);
        assert_eq!(kernel(&[]), None);
    }

    #[test]
    fn it_is_for_the_rows_that_were_tried_and_a_few_less() {
        let choice = Choice::new(160, 1.0, [('a', 0.5)]);
        assert_eq!([160, 150, 149].map(|rows| choice.kernel(rows)), [Some('a'), Some('a'), None]);
        assert_eq!([1, 160, 161].map(|rows| choice.covers(rows)), [true, true, false]);
    }
}
