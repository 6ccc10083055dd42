//! A part of a tensor: so many elements of each dimension, from one on.

/// A part of a tensor. Both lists have an entry for each dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its first element.
    pub start: Vec<u64>,
    /// How many it has.
    pub shape: Vec<u64>,
}

impl Block {
    /// All of a tensor of this shape.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Self {
        Self {
            start: vec![0; shape.len()],
            shape: shape.to_vec(),
        }
    }

    /// The part of rank `rank` of `ranks` along a dimension, as torch's `chunk` cuts: all but the last have as many
    /// elements, rounded up, and the last ones may have none. A scalar, and what has no such dimension, is whole.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn shard(shape: &[u64], dimension: usize, rank: u64, ranks: u64) -> Self {
        assert!(rank < ranks, "a rank is one of them");
        let mut block = Self::whole(shape);
        if let Some(&len) = shape.get(dimension) {
            let each = len.div_ceil(ranks);
            let start = each.saturating_mul(rank).min(len);
            block.start[dimension] = start;
            block.shape[dimension] = each.min(len - start);
        }
        block
    }

    /// How many elements it has, if that can be said.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        // An empty one is empty however long its other dimensions are.
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut all = self.shape.iter();
        all.try_fold(1_u64, |product, &len| product.checked_mul(len))
    }

    /// Whether it is one of a tensor of this shape.
    #[must_use]
    pub fn is_within(&self, shape: &[u64]) -> bool {
        let is_rank = self.start.len() == shape.len() && self.shape.len() == shape.len();
        let mut each = self.start.iter().zip(&self.shape).zip(shape);
        is_rank
            && each.all(|((start, len), whole)| {
                start.checked_add(*len).is_some_and(|end| end <= *whole)
            })
    }

    /// What both have, of one tensor; `None` if that is nothing.
    ///
    /// # Panics
    /// If they are of different numbers of dimensions.
    #[must_use]
    pub fn common(&self, other: &Self) -> Option<Self> {
        let mut common = Self::default();
        for dimension in 0..self.shape.len() {
            let start = self.start[dimension].max(other.start[dimension]);
            let end = self.end(dimension).min(other.end(dimension));
            if end <= start {
                return None;
            }
            common.start.push(start);
            common.shape.push(end - start);
        }
        Some(common)
    }

    fn end(&self, dimension: usize) -> u64 {
        self.start[dimension] + self.shape[dimension]
    }

    /// What is left of it without `part`, which it has, in at most two blocks a dimension.
    pub(super) fn without(mut self, part: &Self) -> Vec<Self> {
        let mut rest = Vec::new();
        for dimension in 0..self.shape.len() {
            let (start, end) = (part.start[dimension], part.end(dimension));
            let before = start - self.start[dimension];
            if before > 0 {
                let mut block = self.clone();
                block.shape[dimension] = before;
                rest.push(block);
            }
            let behind = self.end(dimension) - end;
            if behind > 0 {
                let mut block = self.clone();
                block.start[dimension] = end;
                block.shape[dimension] = behind;
                rest.push(block);
            }
            self.start[dimension] = start;
            self.shape[dimension] = end - start;
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(start: &[u64], shape: &[u64]) -> Block {
        Block {
            start: start.to_vec(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn shards_are_cut_as_torch_cuts() {
        let rows = |rank, ranks| {
            let Block { start, shape } = Block::shard(&[10, 3], 0, rank, ranks);
            assert_eq!((start[1], shape[1]), (0, 3));
            (start[0], shape[0])
        };
        assert_eq!(
            [0, 1, 2, 3].map(|rank| rows(rank, 4)),
            [(0, 3), (3, 3), (6, 3), (9, 1)]
        );
        assert_eq!([4, 5].map(|rank| rows(rank, 6)), [(8, 2), (10, 0)]);
        assert_eq!(Block::shard(&[7], 1, 1, 2), Block::whole(&[7]));
        assert_eq!(Block::shard(&[], 0, 1, 2), Block::whole(&[]));
    }

    #[test]
    fn what_is_left_of_a_block_is_the_rest() {
        let all = block(&[0, 0], &[4, 4]);
        assert_eq!(all.common(&block(&[4, 0], &[1, 4])), None);
        let middle = block(&[1, 1], &[2, 2]);
        assert_eq!(all.common(&middle), Some(middle.clone()));
        let rest = all.clone().without(&middle);
        let elements: u64 = rest.iter().map(|it| it.elements().unwrap()).sum();
        assert_eq!((rest.len(), elements), (4, 12));
        for (at, one) in rest.iter().enumerate() {
            assert_eq!(one.common(&middle), None);
            assert!(rest[at + 1..].iter().all(|two| one.common(two).is_none()));
        }
        assert!(all.clone().without(&all).is_empty());
        let scalar = Block::whole(&[]);
        assert_eq!(
            (scalar.elements(), scalar.common(&scalar)),
            (Some(1), Some(scalar.clone()))
        );
    }
}
