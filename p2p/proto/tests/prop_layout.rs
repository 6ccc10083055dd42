//! Plans beside a model that is obviously right: every element by itself.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lunette_p2p_proto::Shape;
    use lunette_p2p_proto::layout::{Block, Copied, Dtype, Layout, Plan, PlanFault, Slice, Tensor};
    use proptest::prelude::*;

    const DTYPE: Dtype = Dtype::U32;
    const ELEMENT: usize = 4;

    /// A tensor in parts, each somewhere in one of two buffers, and what is wanted of it.
    #[derive(Clone, Debug)]
    struct Case {
        shape: Vec<u64>,
        /// Where each dimension is cut, in the object.
        cuts: Vec<Vec<u64>>,
        /// How many bytes are before each part, and which buffer it is in.
        gaps: Vec<(u8, bool)>,
        wanted: Block,
        offset_bytes: u64,
    }

    fn dimension() -> impl Strategy<Value = (u64, Vec<u64>, (u64, u64))> {
        (1_u64..24).prop_flat_map(|len| {
            let cuts = prop::collection::vec(1..=len, 0..3);
            let wanted = (0..len).prop_flat_map(move |start| (Just(start), 1..=len - start));
            (Just(len), cuts, wanted)
        })
    }

    fn case() -> impl Strategy<Value = Case> {
        let dimensions = prop::collection::vec(dimension(), 0..4);
        let gaps = prop::collection::vec(any::<(u8, bool)>(), 27);
        (dimensions, gaps, 0_u64..9).prop_map(|(dimensions, gaps, offset_bytes)| Case {
            shape: dimensions.iter().map(|it| it.0).collect(),
            cuts: dimensions.iter().map(|it| it.1.clone()).collect(),
            gaps,
            wanted: Block {
                start: dimensions.iter().map(|it| it.2.0).collect(),
                shape: dimensions.iter().map(|it| it.2.1).collect(),
            },
            offset_bytes,
        })
    }

    /// Every index of a block, in the order in which its elements lie.
    fn indices(block: &Block) -> Vec<Vec<u64>> {
        let mut all = vec![Vec::new()];
        for (&start, &len) in block.start.iter().zip(&block.shape) {
            let longer = all.iter().flat_map(|index: &Vec<u64>| {
                (start..start + len).map(|at| [index.clone(), vec![at]].concat())
            });
            all = longer.collect();
        }
        all
    }

    /// An element of the tensor says where it is.
    fn element(shape: &[u64], index: &[u64]) -> [u8; ELEMENT] {
        let flat = shape
            .iter()
            .zip(index)
            .fold(0, |flat, (len, at)| flat * len + at);
        u32::try_from(flat + 1).unwrap().to_le_bytes()
    }

    fn bytes_of(shape: &[u64], block: &Block) -> Vec<u8> {
        let indices = indices(block);
        indices
            .iter()
            .flat_map(|index| element(shape, index))
            .collect()
    }

    /// The parts that the cuts make.
    fn parts(case: &Case) -> Vec<Block> {
        let mut parts = vec![Block::default()];
        for (&len, cuts) in case.shape.iter().zip(&case.cuts) {
            let mut ends: Vec<u64> = cuts.iter().copied().chain([len]).collect();
            ends.sort_unstable();
            ends.dedup();
            let mut start = 0;
            let mut spans = Vec::new();
            for end in ends {
                spans.push((start, end - start));
                start = end;
            }
            let longer = parts.iter().flat_map(|part: &Block| {
                spans.iter().map(|&(start, len)| Block {
                    start: [part.start.clone(), vec![start]].concat(),
                    shape: [part.shape.clone(), vec![len]].concat(),
                })
            });
            parts = longer.collect();
        }
        parts
    }

    /// The object's buffers, and where its tensor's parts are in them.
    fn object(case: &Case) -> (Vec<Vec<u8>>, Vec<Tensor>) {
        let mut buffers = vec![vec![0xff], vec![0xff]];
        let mut tensors = Vec::new();
        for (block, &(gap, is_second)) in parts(case).into_iter().zip(&case.gaps) {
            let buffer = &mut buffers[usize::from(is_second)];
            buffer.resize(buffer.len() + usize::from(gap), 0xff);
            tensors.push(Tensor {
                name: "t".into(),
                dtype: DTYPE,
                shape: case.shape.clone(),
                block: block.clone(),
                buffer: u32::from(is_second),
                offset_bytes: buffer.len() as u64,
            });
            buffer.extend(bytes_of(&case.shape, &block));
        }
        (buffers, tensors)
    }

    fn slice(case: &Case) -> Slice {
        Slice {
            tensor: "t".into(),
            dtype: DTYPE,
            shape: case.shape.clone(),
            block: case.wanted.clone(),
            buffer: 0,
            offset_bytes: case.offset_bytes,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn plans_take_every_wanted_element_and_no_other(case in case()) {
            let (buffers, tensors) = object(&case);
            let lens = buffers.iter().map(|buffer| buffer.len() as u64).collect();
            let shape = Shape::new(4096, lens).unwrap();
            let layout = Layout::new(tensors, &shape).unwrap();
            let wanted = bytes_of(&case.shape, &case.wanted);
            let room = case.offset_bytes + wanted.len() as u64;
            let plan = Plan::new(&shape, &layout, &[slice(&case)], &[room]).unwrap();
            prop_assert_eq!(plan.len_bytes(), wanted.len() as u64);
            let mut got = vec![0; usize::try_from(room).unwrap()];
            let mut times: BTreeMap<usize, u32> = BTreeMap::new();
            for chunk in 0..shape.chunks() {
                let place = shape.place(chunk).unwrap();
                let from = usize::try_from(place.offset_bytes).unwrap();
                let bytes = &buffers[place.buffer as usize][from..][..place.len_bytes as usize];
                let mut copied = 0;
                plan.copies(chunk, |it| {
                    let from = &bytes[it.chunk_offset as usize..][..it.len_bytes as usize];
                    let to = usize::try_from(it.offset_bytes).unwrap();
                    got[to..to + from.len()].copy_from_slice(from);
                    for byte in to..to + from.len() {
                        *times.entry(byte).or_default() += 1;
                    }
                    copied += from.len();
                });
                // A chunk is fetched for its bytes, and not for nothing.
                prop_assert_eq!(plan.chunks().contains(chunk), copied > 0);
                let all = plan.all_of(chunk);
                prop_assert_eq!(all.is_some(), copied == bytes.len());
                let len = |it: &Copied| it.len_bytes as usize;
                prop_assert!(all.is_none_or(|all| all.iter().map(len).sum::<usize>() == copied));
            }
            let start = usize::try_from(case.offset_bytes).unwrap();
            prop_assert!(got[start..] == wanted[..]);
            prop_assert!(got[..start].iter().all(|&byte| byte == 0));
            prop_assert_eq!(times.len(), wanted.len());
            prop_assert!(times.values().all(|&count| count == 1));
        }

        #[test]
        fn runs_of_all_parts_make_the_slice(case in case()) {
            let (buffers, tensors) = object(&case);
            let wanted = bytes_of(&case.shape, &case.wanted);
            let slice = slice(&case);
            let mut got = vec![0_u32; wanted.len()];
            for part in &tensors {
                slice.runs_of(part, |from, to, len| {
                    let within = |bytes| usize::try_from(bytes).unwrap();
                    let (from, len) = (within(from), within(len));
                    let to = within(to - case.offset_bytes);
                    let bytes = &buffers[part.buffer as usize][from..][..len];
                    assert!(bytes == &wanted[to..][..len]);
                    for byte in &mut got[to..][..len] {
                        *byte += 1;
                    }
                });
            }
            prop_assert!(got.iter().all(|&times| times == 1));
            let mut other = tensors[0].clone();
            other.name = "other".into();
            slice.runs_of(&other, |_, _, _| panic!("it is of another tensor"));
        }

        #[test]
        fn without_one_of_its_parts_a_tensor_is_not_all_there(case in case(), lost in any::<prop::sample::Index>()) {
            let (buffers, mut tensors) = object(&case);
            let lost = tensors.remove(lost.index(tensors.len()));
            let lens = buffers.iter().map(|buffer| buffer.len() as u64).collect();
            let shape = Shape::new(4096, lens).unwrap();
            let is_last = tensors.is_empty();
            let layout = Layout::new(tensors, &shape).unwrap();
            let room = case.offset_bytes + bytes_of(&case.shape, &case.wanted).len() as u64;
            let plan = Plan::new(&shape, &layout, &[slice(&case)], &[room]);
            let is_touched = indices(&case.wanted).iter().any(|index| {
                let spans = lost.block.start.iter().zip(&lost.block.shape);
                index.iter().zip(spans).all(|(at, (start, len))| (*start..start + len).contains(at))
            });
            let tensor = "t".to_owned();
            match plan {
                Ok(_) => prop_assert!(!is_touched),
                Err(PlanFault::NoTensor { .. }) => prop_assert!(is_last),
                Err(fault) => {
                    prop_assert!(is_touched);
                    prop_assert_eq!(fault, PlanFault::NotCovered { tensor });
                }
            }
        }
    }

    /// Plans for a matrix, and for one of elements of four bits.
    fn plan(slices: &[Slice]) -> Result<(), PlanFault> {
        let shape = Shape::new(4096, vec![1000]).unwrap();
        let tensor = |name: &str, dtype, at| Tensor::whole(name.into(), dtype, vec![4, 4], 0, at);
        let tensors = vec![tensor("t", Dtype::F32, 0), tensor("packed", Dtype::F4, 100)];
        let layout = Layout::new(tensors, &shape).unwrap();
        Plan::new(&shape, &layout, slices, &[32]).map(|_| ())
    }

    /// Two columns of the matrix, changed.
    fn planned(change: fn(&mut Slice)) -> Result<(), PlanFault> {
        let mut slice = columns();
        change(&mut slice);
        plan(&[slice])
    }

    fn columns() -> Slice {
        Slice {
            tensor: "t".into(),
            dtype: Dtype::F32,
            shape: vec![4, 4],
            block: Block::shard(&[4, 4], 1, 0, 2),
            buffer: 0,
            offset_bytes: 0,
        }
    }

    #[test]
    fn what_is_wanted_is_to_be_what_there_is() {
        let tensor = || "t".to_owned();
        assert_eq!(planned(|_| {}), Ok(()));
        let none = planned(|it| it.tensor = "u".into());
        let unknown = "u".to_owned();
        assert_eq!(none, Err(PlanFault::NoTensor { tensor: unknown }));
        let other = planned(|it| it.dtype = Dtype::I32);
        let fault = PlanFault::Dtype {
            tensor: tensor(),
            wanted: Dtype::I32,
            has: Dtype::F32,
        };
        assert_eq!(other, Err(fault));
        let other = planned(|it| it.shape = vec![4, 5]);
        let fault = PlanFault::Shape {
            tensor: tensor(),
            wanted: vec![4, 5],
            has: vec![4, 4],
        };
        assert_eq!(other, Err(fault));
        let block = Err(PlanFault::Block { tensor: tensor() });
        assert_eq!(planned(|it| it.block.start[1] = 3), block);
        assert_eq!(planned(|it| it.block.shape.clear()), block);
    }

    #[test]
    fn what_is_wanted_is_to_fit_where_it_is_wanted() {
        let tensor = || "t".to_owned();
        for change in [
            |it: &mut Slice| it.buffer = 1,
            |it: &mut Slice| it.offset_bytes = 1,
            |it: &mut Slice| it.offset_bytes = u64::MAX,
        ] {
            let fault = PlanFault::Target { tensor: tensor() };
            assert_eq!(planned(change), Err(fault));
        }
        let twice = plan(&[columns(), columns()]);
        assert_eq!(twice, Err(PlanFault::Overlap { tensor: tensor() }));
        assert_eq!(plan(&[]), Err(PlanFault::Empty));
        let nothing = planned(|it| it.block.shape = vec![4, 0]);
        assert_eq!(nothing, Err(PlanFault::Empty));
    }

    #[test]
    fn elements_of_less_than_a_byte_are_had_as_they_lie() {
        let mut packed = Slice {
            tensor: "packed".into(),
            dtype: Dtype::F4,
            block: Block::whole(&[4, 4]),
            ..columns()
        };
        assert_eq!(plan(core::slice::from_ref(&packed)), Ok(()));
        packed.block = Block::shard(&[4, 4], 0, 0, 2);
        let (tensor, dtype) = ("packed".into(), Dtype::F4);
        assert_eq!(plan(&[packed]), Err(PlanFault::Packed { tensor, dtype }));
    }
}
