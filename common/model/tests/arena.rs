//! Slots from a target's taps to a drafter's tensor through the real queue, in host memory. The same on GPUs, between
//! processes that die, is `examples/gpu_checks`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use common::config::{Dtype, GateMode, PopPolicy};
use common::ids::{BatchId, Rank, SlotIndex, Step};
use common::model_config::{Architecture, Rope, RopeScaling, TargetConfig};
use common::queue::{Queue, QueueOwner, QueueSpec, Rows, arena_name};
use common::shm::Segment;
use common::shutdown::Shutdown;
use common::wait::Patience;
use model::arena::{Arena, ArenaError, HostArena, SlotReader, SlotShape, SlotWriter};
use model::target::Backbone;
use tch::{Device, Kind, Tensor};

const SHAPE: SlotShape = SlotShape { tokens: 12, taps: 3, hidden: 8, dtype: Dtype::Bfloat16 };
const SLOTS: u32 = 2;

/// One target, one drafter, and what lies between them.
struct World {
    queue: QueueOwner,
    _memory: Segment,
    run_id: String,
}

impl World {
    fn new(name: &str) -> World {
        let run_id = format!("arena-{name}-{:x}", std::process::id());
        let spec = QueueSpec {
            run_id: run_id.clone(),
            capacity: SLOTS,
            batch_tokens: SHAPE.tokens as u32,
            max_documents: 4,
            slot_bytes: SHAPE.bytes() as u64,
            bucket_bounds: Vec::new(),
            min_ready: 1,
            gate: GateMode::Level,
            policy: PopPolicy::Strict,
            max_age: Duration::from_secs(5),
            targets: 1,
            drafters: 1,
            total_batches: 9,
            seed: 1,
        };
        let memory = Segment::create(&arena_name(&run_id), SLOTS as usize * SHAPE.bytes()).unwrap();
        World { queue: Queue::create(&spec).unwrap(), _memory: memory, run_id }
    }

    fn host(&self) -> HostArena {
        HostArena::attach(&arena_name(&self.run_id), SHAPE, SLOTS).unwrap()
    }

    fn arena(&self) -> Arena {
        Arena::Host(self.host())
    }
}

fn patience() -> Patience {
    Patience { timeout: Duration::from_secs(20), shutdown: Shutdown::never() }
}

fn taps(batch: BatchId, tokens: i64) -> Vec<Tensor> {
    let start = batch.0 as i64 * 1000;
    let values =
        |k: i64| Tensor::arange_start(start + k * 100, start + k * 100 + tokens * 8, (Kind::Float, Device::Cpu));
    (0..3).map(|k| values(k).view([tokens, 8]).to_kind(Kind::BFloat16)).collect()
}

fn rows(tokens: u32) -> Rows {
    Rows {
        token_ids: (0..tokens).collect(),
        loss_mask: vec![1; tokens as usize],
        document_offsets: vec![0, tokens],
        row_ids: vec![7],
    }
}

/// Claims, fills and publishes the next batch.
fn publish(world: &World, writer: &SlotWriter, tokens: u32) -> SlotIndex {
    let producer = world.queue.producer(Rank(0)).unwrap();
    let mut lease = producer.claim(&patience()).unwrap().unwrap();
    let slot = lease.slot();
    let mut filling = writer.fill(&lease, &patience()).unwrap();
    for (k, hidden) in taps(lease.batch_id(), i64::from(tokens)).iter().enumerate() {
        filling.write_tap(k, hidden);
    }
    lease.set_checksum(filling.finish().unwrap().wait().unwrap());
    lease.publish(0, &rows(tokens)).unwrap();
    slot
}

#[test]
fn what_is_read_is_bit_for_bit_what_was_captured_whatever_the_length() {
    let world = World::new("whole");
    let writer = SlotWriter::new(world.arena(), true).unwrap();
    let reader = SlotReader::new(world.arena(), Device::Cpu, Rank(0)).unwrap();
    let consumer = world.queue.consumer(Rank(0)).unwrap();
    for (batch, tokens) in [12u32, 5, 1, 11, 12, 2].into_iter().enumerate() {
        publish(&world, &writer, tokens);
        let lease = consumer.pop(&patience()).unwrap().unwrap();
        let id = lease.batch_id();
        assert_eq!(id.0, batch as u64);
        assert_eq!(lease.checksum().unwrap().0, Rank(0));
        let read = reader.read(&lease, tokens as usize, reader.buffer().unwrap(), &patience()).unwrap();
        assert!(read.taps.equal(&Tensor::cat(&taps(id, i64::from(tokens)), 1)));
        lease.release().unwrap();
        consumer.trained(&[id], Step(1)).unwrap();
    }
}

fn backbone() -> Backbone {
    let config = TargetConfig {
        architecture: Architecture::Qwen3,
        vocab_size: 40,
        hidden_size: SHAPE.hidden,
        intermediate_size: 16,
        num_hidden_layers: 5,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 4,
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 1e6, scaling: RopeScaling::Default },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 64,
        bos_token_id: None,
        eos_token_ids: vec![],
    };
    Backbone::random(&config, 5, Device::Cpu, Kind::BFloat16).unwrap()
}

/// A batch of documents of these lengths.
fn packed(batch: u32, lengths: &[u32]) -> Rows {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    let tokens: u32 = lengths.iter().sum();
    Rows {
        token_ids: (0..tokens).map(|place| (place * 7 + batch) % 40).collect(),
        loss_mask: vec![1; tokens as usize],
        document_offsets: [0].into_iter().chain(ends).collect(),
        row_ids: (0..lengths.len() as u64).collect(),
    }
}

/// All slots are in flight at once, and used again and again. The same on GPUs: `gpu_checks taps`.
#[test]
fn taps_of_packed_batches_arrive_bit_for_bit_as_a_plain_forward_gives_them() {
    const LAYERS: [usize; 3] = [0, 2, 3];
    const DOCUMENTS: [&[u32]; 8] = [&[12], &[1, 1, 1], &[5, 7], &[1], &[3, 1, 6, 2], &[11], &[2, 9], &[4, 4]];
    let world = World::new("taps");
    let (backbone, writer) = (backbone(), SlotWriter::new(world.arena(), true).unwrap());
    let reader = SlotReader::new(world.arena(), Device::Cpu, Rank(0)).unwrap();
    let (producer, consumer) = (world.queue.producer(Rank(0)).unwrap(), world.queue.consumer(Rank(0)).unwrap());
    let capture = |rows: &Rows, sink: &mut dyn FnMut(usize, &Tensor)| {
        backbone.capture(&rows.token_ids, &rows.document_offsets, &LAYERS, sink);
    };
    for in_flight in DOCUMENTS.chunks(SLOTS as usize) {
        let filled = in_flight.iter().map(|lengths| {
            let lease = producer.claim(&patience()).unwrap().unwrap();
            let rows = packed(lease.batch_id().0 as u32, lengths);
            let mut filling = writer.fill(&lease, &patience()).unwrap();
            capture(&rows, &mut |tap, hidden| filling.write_tap(tap, hidden));
            (lease, filling.finish().unwrap(), rows)
        });
        for (mut lease, written, rows) in filled.collect::<Vec<_>>() {
            lease.set_checksum(written.wait().unwrap());
            lease.publish(0, &rows).unwrap();
        }
        for lengths in in_flight {
            let lease = consumer.pop(&patience()).unwrap().unwrap();
            let (batch, rows) = (lease.batch_id(), lease.rows().unwrap());
            assert_eq!(rows, packed(batch.0 as u32, lengths));
            let buffer = reader.buffer().unwrap();
            let read = reader.read(&lease, rows.num_tokens(), buffer, &patience()).unwrap();
            lease.release().unwrap();
            consumer.trained(&[batch], Step(1)).unwrap();
            let mut plain = Vec::new();
            capture(&rows, &mut |_, hidden| plain.push(hidden.copy()));
            assert!(read.taps.equal(&Tensor::cat(&plain, 1)), "{batch}");
        }
    }
}

#[test]
fn an_overwritten_payload_is_named_with_slot_batch_and_ranks() {
    let world = World::new("torn");
    let writer = SlotWriter::new(world.arena(), true).unwrap();
    let reader = SlotReader::new(world.arena(), Device::Cpu, Rank(0)).unwrap();
    let slot = publish(&world, &writer, 9);
    world.host().write_tap(slot, 1, &Tensor::ones([2, 8], (Kind::BFloat16, Device::Cpu)));
    let consumer = world.queue.consumer(Rank(0)).unwrap();
    let lease = consumer.pop(&patience()).unwrap().unwrap();
    let error = reader.read(&lease, 9, reader.buffer().unwrap(), &patience()).err().unwrap();
    let text = error.to_string();
    assert!(
        matches!(error, ArenaError::Checksum { batch: BatchId(0), writer: Rank(0), reader: Rank(0), .. }),
        "{text}"
    );
    assert!(text.starts_with(&format!("batch 0 in slot {slot}: ")) && text.contains("target 0 sent"), "{text}");
}

#[test]
fn without_verification_no_checksum_travels() {
    let world = World::new("plain");
    let writer = SlotWriter::new(world.arena(), false).unwrap();
    publish(&world, &writer, 3);
    let lease = world.queue.consumer(Rank(0)).unwrap().pop(&patience()).unwrap().unwrap();
    assert_eq!(lease.checksum(), None);
}

#[test]
fn taps_that_do_not_fit_and_segments_that_are_cut_are_refused() {
    let world = World::new("shape");
    let writer = SlotWriter::new(world.arena(), false).unwrap();
    let lease = world.queue.producer(Rank(0)).unwrap().claim(&patience()).unwrap().unwrap();
    for (size, kind) in [([13, 8], Kind::BFloat16), ([3, 7], Kind::BFloat16), ([3, 8], Kind::Float)] {
        let mut filling = writer.fill(&lease, &patience()).unwrap();
        filling.write_tap(2, &Tensor::zeros(size, (kind, Device::Cpu)));
        assert!(matches!(filling.finish(), Err(ArenaError::Shape { tap: 2, .. })), "{size:?} {kind:?}");
    }
    let short = HostArena::attach(&arena_name(&world.run_id), SHAPE, SLOTS + 1);
    assert!(matches!(short, Err(ArenaError::Length { .. })));
}

#[test]
fn a_checksum_that_cannot_be_is_refused_with_what_helps() {
    let world = World::new("odd");
    let odd = SlotShape { hidden: 6, ..SHAPE };
    let arena = || Arena::Host(HostArena::attach(&arena_name(&world.run_id), odd, SLOTS).unwrap());
    assert!(SlotWriter::new(arena(), false).is_ok());
    let error = SlotWriter::new(arena(), true).err().unwrap();
    assert!(error.to_string().contains("12 bytes") && error.hint().unwrap().contains("run.verify_payload"), "{error}");
}
