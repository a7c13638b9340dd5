//! Where a step's blocks and context rows stand: padded just so far that every attention call is one batch over documents.
//!
//! Documents whose contexts are of like length form a class; in it every context is padded to the longest. Each document's
//! blocks, by anchor, are cut into groups of G, the last filled up with blocks that see and change nothing. The g-th
//! groups of all documents of a class are one call: documents with more groups come first in the class, so that a call's
//! documents are the first ones.
//!
//! What padding costs is bounded: fewer than G fillers a document, and context rows at most half more than those that
//! some block sees ([`class_sizes`]), before lengths are rounded up by at most an eighth ([`context_unit`]). The number of
//! calls depends on lengths alone, not on how many documents there are.

use common::footprint::{class_sizes, context_unit};

use super::anchors::PackedRows;
use super::plan::PlanOptions;

/// One block in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// The document it stands in.
    pub(super) document: usize,
    /// The anchor token, counted from the document's start; `None` for a filler.
    pub(super) anchor: Option<usize>,
}

/// Documents of like context length.
#[derive(Debug)]
pub(super) struct Class {
    /// In the order of their context rows.
    pub(super) documents: Vec<usize>,
    /// Context rows of each document, from its first token on.
    pub(super) length: usize,
    /// Lengths are multiples of this.
    pub(super) unit: usize,
    /// Documents of each call: those that have a g-th group.
    pub(super) calls: Vec<usize>,
}

/// The places of all blocks and context rows.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) classes: Vec<Class>,
    /// Class by class, call by call, document by document.
    pub(super) blocks: Vec<Placed>,
    /// Place of each anchor, in the order they were given.
    pub(super) places: Vec<usize>,
}

impl Layout {
    pub(super) fn new(rows: &PackedRows, anchors: &[usize], options: &PlanOptions) -> Layout {
        let mut layout = Layout { classes: Vec::new(), blocks: Vec::new(), places: vec![usize::MAX; anchors.len()] };
        for members in classes(members(rows, anchors)) {
            layout.push(members, options);
        }
        layout
    }

    fn push(&mut self, mut members: Vec<Member>, options: &PlanOptions) {
        let size = options.group_blocks;
        let groups = |member: &Member| member.anchors.len().div_ceil(size);
        members.sort_by_key(|member| std::cmp::Reverse(groups(member)));
        let reach = members.iter().map(|member| member.reach).max().unwrap_or(0).max(1);
        let unit = context_unit(reach, options.context_unit);
        let mut calls = Vec::new();
        for ordinal in 0..groups(&members[0]) {
            let present = members.iter().take_while(|member| groups(member) > ordinal);
            calls.push(present.map(|member| self.push_group(member, ordinal, size)).count());
        }
        let documents = members.iter().map(|member| member.document).collect();
        self.classes.push(Class { documents, length: reach.next_multiple_of(unit), unit, calls });
    }

    fn push_group(&mut self, member: &Member, ordinal: usize, size: usize) {
        let first = ordinal * size;
        for index in first..first + size {
            let anchor = member.anchors.get(index).map(|&(anchor, given)| {
                self.places[given] = self.blocks.len();
                anchor
            });
            self.blocks.push(Placed { document: member.document, anchor });
        }
    }

    /// The token that each context row stands for; rows behind a document's end repeat its last token and are never seen.
    pub(super) fn context_tokens(&self, rows: &PackedRows) -> Vec<usize> {
        let of_document = |length: usize, document: usize| {
            let tokens = rows.document(document);
            (0..length).map(move |place| (tokens.start + place).min(tokens.end - 1))
        };
        let of_class =
            |class: &Class| class.documents.iter().flat_map(|&d| of_document(class.length, d)).collect::<Vec<_>>();
        self.classes.iter().flat_map(of_class).collect()
    }
}

/// A document that has blocks.
struct Member {
    document: usize,
    /// Anchors from the document's start, ascending, each with its index among those given.
    anchors: Vec<(usize, usize)>,
    /// Context tokens that its blocks may see: those before its last anchor.
    reach: usize,
}

/// Documents with blocks, the longest reach first.
fn members(rows: &PackedRows, anchors: &[usize]) -> Vec<Member> {
    let mut of_document = vec![Vec::new(); rows.row_ids.len()];
    for (given, &anchor) in anchors.iter().enumerate() {
        let document = rows.document_of(anchor);
        of_document[document].push((anchor - rows.document(document).start, given));
    }
    let mut members = Vec::new();
    for (document, mut anchors) in of_document.into_iter().enumerate() {
        anchors.sort_unstable();
        if let Some(&(reach, _)) = anchors.last() {
            members.push(Member { document, anchors, reach });
        }
    }
    members.sort_by_key(|member| std::cmp::Reverse(member.reach));
    members
}

/// Cuts members, longest first, where padding to the longest would waste too much.
fn classes(mut members: Vec<Member>) -> Vec<Vec<Member>> {
    let sizes = class_sizes(members.iter().map(|member| member.reach));
    sizes.into_iter().map(|size| members.drain(..size).collect()).collect()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn options(group_blocks: usize) -> PlanOptions {
        PlanOptions {
            block_size: 4,
            mask_token_id: 0,
            group_blocks,
            context_unit: 1,
            heads_per_key: 1,
            visibilities: vec![],
            kind: Kind::Float,
            device: Device::Cpu,
        }
    }

    /// Documents of these lengths with `anchors` anchors each at most, evenly spread up to the last token but one.
    fn layout(lengths: &[usize], anchors: usize, group_blocks: usize) -> (Layout, usize) {
        let mut offsets = vec![0];
        let mut chosen = Vec::new();
        for &length in lengths {
            let start = offsets[offsets.len() - 1];
            let count = anchors.min(length - 1);
            chosen.extend((0..count).map(|index| start as usize + (index + 1) * (length - 1) / count - 1));
            offsets.push(start + length as u32);
        }
        let tokens = offsets[lengths.len()] as usize;
        let (ids, mask, row_ids) = (vec![1; tokens], vec![1; tokens], vec![0; lengths.len()]);
        let rows = PackedRows { token_ids: &ids, loss_mask: &mask, document_offsets: &offsets, row_ids: &row_ids };
        let layout = Layout::new(&rows, &chosen, &options(group_blocks));
        for (anchor, place) in chosen.iter().zip(&layout.places) {
            let block = layout.blocks[*place];
            assert_eq!(block.anchor.map(|relative| rows.document(block.document).start + relative), Some(*anchor));
        }
        assert_eq!(layout.blocks.iter().filter(|block| block.anchor.is_some()).count(), chosen.len(), "each once");
        (layout, chosen.len())
    }

    fn calls(layout: &Layout) -> usize {
        layout.classes.iter().map(|class| class.calls.len()).sum()
    }

    #[test]
    fn the_number_of_calls_does_not_depend_on_the_number_of_documents() {
        assert_eq!(calls(&layout(&[320; 2], 64, 32).0), 2);
        assert_eq!(calls(&layout(&[320; 64], 64, 32).0), 2);
        assert_eq!(calls(&layout(&[3072; 4], 512, 64).0), 8);
    }

    #[test]
    fn padding_is_bounded_however_documents_differ() {
        let random = |index: usize| 2 + (index * 7919 + 13) % 97 * (index % 5) * (index % 7);
        for lengths in [vec![20; 400], [vec![3000], vec![12; 300]].concat(), (0..60).map(random).collect()] {
            for group_blocks in [1, 8, 32] {
                let (layout, anchors) = layout(&lengths, 64, group_blocks);
                assert!(layout.blocks.len() < anchors + lengths.len() * group_blocks);
                let rows: usize = layout.classes.iter().map(|class| class.documents.len() * class.length).sum();
                let needed: usize = lengths.iter().sum();
                assert!(rows as f64 <= 1.5 * 1.25 * needed as f64, "{rows} context rows for {needed} tokens");
                assert!(layout.classes.len() < 20, "{} classes", layout.classes.len());
            }
        }
    }

    #[test]
    fn documents_with_more_groups_come_first() {
        let (layout, _) = layout(&[9, 12, 10], 100, 4);
        assert_eq!(layout.classes.len(), 1);
        assert_eq!(
            (layout.classes[0].documents.as_slice(), layout.classes[0].calls.as_slice()),
            (&[1, 2, 0][..], &[3, 3, 2][..])
        );
    }
}
