//! Documents side by side in rows of one width, for the attention kernel that takes no offsets.

/// Widths from here on are worth copying heads into rows for; narrower ones are not (measured on an H200).
const WIDE: u32 = 1024;
/// What widths are multiples of: a kernel builds a plan for each shape, so there must be few.
const WIDE_STEP: u32 = 256;
const NARROW_STEP: u32 = 64;

/// Rows of a batch, one a document, filled up behind their documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) rows: u32,
    pub(super) width: u32,
}

impl Grid {
    /// The grid that documents at these offsets are best laid into; none where they are better left packed.
    ///
    /// The kernel for grids is nearly twice as fast as the one for packed documents, so it may look at up to half as many
    /// pairs of tokens more. Without filling up there is nothing to copy.
    pub(super) fn of(document_offsets: &[u32]) -> Option<Grid> {
        let lengths = || document_offsets.windows(2).map(|ends| ends[1] - ends[0]).filter(|length| *length > 0);
        let longest = lengths().max()?;
        let step = if longest >= WIDE { WIDE_STEP } else { NARROW_STEP };
        let grid = Grid { rows: few(lengths().count() as u32), width: longest.next_multiple_of(step) };
        let square = |length: u32| u64::from(length).pow(2);
        let pairs: u64 = lengths().map(square).sum();
        let pays = grid.width >= WIDE && 2 * u64::from(grid.rows) * square(grid.width) <= 3 * pairs;
        (pays || grid.is_full(document_offsets)).then_some(grid)
    }

    /// Whether the documents fill it: the packed batch is the grid.
    pub(super) fn is_full(&self, document_offsets: &[u32]) -> bool {
        document_offsets.last() == Some(&(self.rows * self.width))
    }

    /// For each place, row by row, the token that lies there; the first one where none does.
    pub(super) fn tokens(&self, document_offsets: &[u32]) -> Vec<i32> {
        let mut tokens = vec![0; (self.rows * self.width) as usize];
        for (token, place) in self.places(document_offsets).into_iter().enumerate() {
            tokens[place as usize] = token as i32;
        }
        tokens
    }

    /// For each token the place where it lies.
    pub(super) fn places(&self, document_offsets: &[u32]) -> Vec<i32> {
        let documents = document_offsets.windows(2).filter(|ends| ends[0] < ends[1]);
        let rows = documents.enumerate().flat_map(|(row, ends)| {
            let start = row as u32 * self.width;
            start..start + ends[1] - ends[0]
        });
        rows.map(|place| place as i32).collect()
    }
}

/// `rows` or up to an eighth more, so that there are few different numbers.
fn few(rows: u32) -> u32 {
    rows.next_multiple_of((rows.next_power_of_two() / 8).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_documents_lie_in_a_grid_and_unlike_ones_do_not() {
        assert_eq!(Grid::of(&[0, 3072, 6144]), Some(Grid { rows: 2, width: 3072 }));
        assert_eq!(Grid::of(&[0, 1100, 1100, 2300]), Some(Grid { rows: 2, width: 1280 }));
        assert_eq!(Grid::of(&[0, 320, 640]), Some(Grid { rows: 2, width: 320 }), "no copy");
        assert_eq!(Grid::of(&[0, 320, 639]), None, "a copy that is not worth it");
        assert_eq!(Grid::of(&[0, 3000, 3100, 3200]), None, "two rows of filling");
        assert_eq!(Grid::of(&[0]), None);
    }

    #[test]
    fn every_token_has_its_place() {
        let (grid, offsets) = (Grid { rows: 3, width: 4 }, [0, 3, 3, 5]);
        assert_eq!(grid.places(&offsets), [0, 1, 2, 4, 5]);
        assert_eq!(grid.tokens(&offsets), [0, 1, 2, 0, 3, 4, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn few_numbers_of_rows() {
        assert_eq!([1, 7, 8, 9, 15, 17, 33].map(few), [1, 7, 8, 10, 16, 20, 40]);
    }
}
