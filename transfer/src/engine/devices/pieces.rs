//! Which bytes of which requests travel together.
//!
//! Long requests are cut, and short ones travel together, so that a piece is about as long as what a device copies and
//! a peer carries well, whatever a batch is made of.

use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::CUT_ALIGN_BYTES;

/// Longest piece.
pub(super) const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Most requests of which a piece has something.
pub(super) const PIECE_PARTS_MAX: usize = 256;
/// Requests are cut at multiples of this from their beginning, so that what is in whole blocks stays so.
const CUT_BYTES: usize = 4096;

const _: () = assert!(PIECE_BYTES_MAX.is_multiple_of(CUT_BYTES));
const _: () = assert!(CUT_BYTES as u64 == CUT_ALIGN_BYTES);

/// Bytes of one request that travel in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) request: usize,
    /// First byte within the request.
    pub(super) start: usize,
    pub(super) len: usize,
}

/// How far a batch has been cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cutting {
    request: usize,
    start: usize,
}

impl Cutting {
    /// The next piece: stretches of consecutive requests of one way. Requests that are over are left out. Empty when
    /// nothing is left.
    pub(super) fn next(
        &mut self,
        request: impl Fn(usize) -> Option<(Way, usize)>,
        is_over: impl Fn(usize) -> bool,
    ) -> Vec<Stretch> {
        let mut piece = Vec::new();
        let (mut way, mut left) = (None, PIECE_BYTES_MAX);
        while let Some((its_way, len)) = request(self.request) {
            if is_over(self.request) || self.start == len {
                self.skip();
                continue;
            }
            let is_other = way.is_some_and(|way| way != its_way);
            let rest = len - self.start;
            let fits = if rest <= left {
                rest
            } else {
                left - left % CUT_BYTES
            };
            if is_other || fits == 0 || piece.len() == PIECE_PARTS_MAX {
                break;
            }
            way = Some(its_way);
            piece.push(Stretch {
                request: self.request,
                start: self.start,
                len: fits,
            });
            self.start += fits;
            left -= fits;
        }
        piece
    }

    const fn skip(&mut self) {
        self.request += 1;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn pieces(requests: &[(Way, usize)]) -> Vec<Vec<Stretch>> {
        let mut cutting = Cutting::default();
        let mut pieces = Vec::new();
        loop {
            let piece = cutting.next(|at| requests.get(at).copied(), |_| false);
            if piece.is_empty() {
                return pieces;
            }
            pieces.push(piece);
        }
    }

    fn stretch(request: usize, start: usize, len: usize) -> Stretch {
        Stretch {
            request,
            start,
            len,
        }
    }

    #[test]
    fn short_ones_travel_together_and_long_ones_are_cut_where_blocks_end() {
        let requests = [
            (Way::Read, 100),
            (Way::Read, 0),
            (Way::Read, 2 * MIB),
            (Way::Write, 5),
        ];
        let first = MIB - 4096;
        let expected = [
            vec![stretch(0, 0, 100), stretch(2, 0, first)],
            vec![stretch(2, first, MIB)],
            vec![stretch(2, first + MIB, 4096)],
            vec![stretch(3, 0, 5)],
        ];
        assert_eq!(pieces(&requests), expected);
    }

    #[test]
    fn what_is_over_is_left_out_and_parts_are_bounded() {
        let mut cutting = Cutting::default();
        let requests = vec![(Way::Write, 3); 2 * PIECE_PARTS_MAX];
        let mut next =
            |is_over: &dyn Fn(usize) -> bool| cutting.next(|at| requests.get(at).copied(), is_over);
        let first = next(&|at| at % 2 == 0);
        assert_eq!(first.len(), PIECE_PARTS_MAX);
        assert!(first.iter().all(|stretch| stretch.request % 2 == 1));
        assert!(next(&|_| true).is_empty());
    }

    proptest! {
        #[test]
        fn each_byte_travels_once(
            requests in vec((any::<bool>(), 0..3 * MIB), 0..40),
            short in vec((any::<bool>(), 0_usize..40), 0..600),
        ) {
            let requests: Vec<(Way, usize)> = requests.into_iter().chain(short)
                .map(|(is_read, len)| (if is_read { Way::Read } else { Way::Write }, len))
                .collect();
            let mut found = vec![0; requests.len()];
            for piece in pieces(&requests) {
                let bytes: usize = piece.iter().map(|stretch| stretch.len).sum();
                prop_assert!((1..=PIECE_BYTES_MAX).contains(&bytes));
                prop_assert!(piece.len() <= PIECE_PARTS_MAX);
                let way = requests[piece[0].request].0;
                for stretch in piece {
                    prop_assert_eq!(requests[stretch.request].0, way);
                    prop_assert_eq!(found[stretch.request], stretch.start);
                    prop_assert_eq!(stretch.start % CUT_BYTES, 0);
                    found[stretch.request] += stretch.len;
                }
            }
            let lengths: Vec<usize> = requests.iter().map(|&(_, len)| len).collect();
            prop_assert_eq!(found, lengths);
        }
    }
}
