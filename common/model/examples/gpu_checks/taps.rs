//! Taps that arrive through the arena against those of a plain forward of the same model: bit for bit, in another process
//! on another GPU, with batches of mixed lengths, slots used again and several in flight.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::arena::ArenaKind;
use common::exit::AnyError;
use common::ids::{BatchId, Role, Step};
use common::model_config::{Architecture, Rope, RopeScaling, TargetConfig};
use common::queue::{Phase, Rows, WriteLease};
use model::arena::{SlotReader, SlotWriter, Written};
use model::target::Backbone;
use tch::{Device, Kind, Tensor};

use crate::checks::{START, pair};
use crate::findings::{Bar, Findings};
use crate::spec::{Job, MOST_DOCUMENTS, Spec, TAPS};
use crate::worker::Worker;
use crate::world::World;

/// Ascending layers, the last one with others behind it.
const LAYERS: [usize; TAPS] = [1, 3, 4, 6, 7];
const BATCHES: u64 = 40;
/// Documents' lengths, in turn: of one token, of tile sizes and one off, and long ones.
const LENGTHS: [u32; 10] = [320, 1, 64, 65, 511, 7, 1000, 128, 3, 250];
const VOCABULARY: u32 = 1000;

pub(crate) fn taps(findings: &mut Findings) -> Result<(), AnyError> {
    for kind in [ArenaKind::Fd, ArenaKind::Cuipc] {
        let folder = tempfile::tempdir()?;
        let spec = Spec { hidden: 1024, slots: 3, batches: BATCHES, folder: folder.path().into(), ..pair(kind) };
        let mut world = World::new("taps", spec)?;
        world.start_all(Job::Capture, Job::Keep)?;
        world.until("the end", 2 * START, |world| {
            !world.is_running(Role::Target, 0) && !world.is_running(Role::Drafter, 0)
        })?;
        let same = (0..BATCHES).filter(|batch| is_same(folder.path(), BatchId(*batch))).count();
        let text =
            format!("{kind:?}: batches of mixed lengths whose taps arrive bit for bit as of a plain forward, of 40");
        findings.found(&text, (same as f64, "batches"), Bar::Is(BATCHES as f64));
    }
    Ok(())
}

/// Whether both files are there, not empty, and of the same bytes.
fn is_same(folder: &Path, batch: BatchId) -> bool {
    let read = |name| fs::read(file(folder, name, batch)).unwrap_or_default();
    let (plain, arrived) = (read("plain"), read("arrived"));
    !plain.is_empty() && plain == arrived
}

fn file(folder: &Path, name: &str, batch: BatchId) -> PathBuf {
    folder.join(format!("{name}-{}", batch.0))
}

impl Worker<'_> {
    pub(crate) fn capture(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        producer.phase(Phase::Loading);
        let depth = LAYERS[TAPS - 1] + 1;
        let backbone = Backbone::random(&config(self.spec.hidden as usize), depth, self.device, Kind::BFloat16)?;
        let writer = SlotWriter::new(self.arena()?, self.spec.verify)?;
        producer.phase(Phase::Forward);
        let (sender, receiver) = mpsc::sync_channel::<(WriteLease, Written, Rows)>(1);
        thread::scope(|scope| {
            let publisher = scope.spawn(move || {
                receiver.iter().try_for_each(|(mut lease, written, rows)| {
                    lease.set_checksum(written.wait()?);
                    Ok::<_, AnyError>(lease.publish(0, &rows)?)
                })
            });
            while let Some(lease) = producer.claim(&self.patience)? {
                let (batch, rows) = (lease.batch_id(), packed(lease.batch_id(), self.spec.tokens));
                let capture = |sink: &mut dyn FnMut(usize, &Tensor)| {
                    backbone.capture(&rows.token_ids, &rows.document_offsets, &LAYERS, sink);
                };
                let mut filling = writer.fill(&lease, &self.patience)?;
                capture(&mut |tap, hidden| filling.write_tap(tap, hidden));
                let written = filling.finish()?;
                // While that is on its way.
                let mut plain = Vec::new();
                capture(&mut |_, hidden| plain.push(hidden.copy()));
                if sender.send((lease, written, rows.clone())).is_err() {
                    break;
                }
                write(&file(&self.spec.folder, "plain", batch), &Tensor::cat(&plain, 1))?;
            }
            drop(sender);
            publisher.join().map_err(|_| "the publisher panicked")?
        })
    }

    pub(crate) fn keep(&self) -> Result<(), AnyError> {
        let consumer = self.queue.consumer(self.rank)?;
        let reader = SlotReader::new(self.arena()?, self.device, self.rank)?;
        let mut buffer = reader.buffer()?;
        while let Some(lease) = consumer.pop(&self.patience)? {
            let batch = lease.batch_id();
            let read = reader.read(&lease, lease.rows()?.num_tokens(), buffer, &self.patience)?;
            lease.release()?;
            // The slot may be written again from here on.
            thread::sleep(Duration::from_millis(batch.0 % 5));
            write(&file(&self.spec.folder, "arrived", batch), &read.taps)?;
            consumer.trained(&[batch], Step(1))?;
            buffer = read.into_buffer(reader.gpu())?;
        }
        Ok(())
    }
}

fn write(path: &Path, taps: &Tensor) -> Result<(), AnyError> {
    let bytes = taps.contiguous().view_dtype(Kind::Uint8).to_device(Device::Cpu);
    Ok(fs::write(path, Vec::<u8>::try_from(bytes.flatten(0, -1))?)?)
}

/// Documents of mixed lengths, no two batches alike; every fifth batch is one short document.
fn packed(batch: BatchId, tokens: u32) -> Rows {
    let mut offsets = vec![0];
    let most = if batch.0 % 5 == 4 { 1 } else { MOST_DOCUMENTS as usize };
    for place in batch.0 as usize.. {
        let end = offsets[offsets.len() - 1] + LENGTHS[place % LENGTHS.len()];
        if end > tokens || offsets.len() > most {
            break;
        }
        offsets.push(end);
    }
    let tokens = offsets[offsets.len() - 1];
    Rows {
        token_ids: (0..tokens).map(|place| (place * 7919 + batch.0 as u32 * 31) % VOCABULARY).collect(),
        loss_mask: vec![1; tokens as usize],
        row_ids: (1..offsets.len() as u64).collect(),
        document_offsets: offsets,
    }
}

/// The shape of Qwen3-0.6B, with few layers and a small vocabulary.
fn config(hidden: usize) -> TargetConfig {
    TargetConfig {
        architecture: Architecture::Qwen3,
        vocab_size: VOCABULARY as usize,
        hidden_size: hidden,
        intermediate_size: 3 * hidden,
        num_hidden_layers: LAYERS[TAPS - 1] + 2,
        num_attention_heads: 16,
        num_key_value_heads: 8,
        head_dim: 128,
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 1e6, scaling: RopeScaling::Default },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 4096,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}
