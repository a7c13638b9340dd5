//! Text to token ids with the byte range of each, as the tokenizers crate gives them, only faster.
//!
//! Byte-level BPE, which most published models use, tokenises the pieces of a text one by one, and the same pieces come
//! again and again: each is looked up in a table first, and the model is asked only for those that are not in it. Where a
//! tokenizer does something that [`pieces`] does not know, or a text needs normalising, the crate does all of it.

mod bytes;
mod pieces;

use std::sync::Mutex;

use ahash::AHashMap;
use tokenizers::{Model, ModelWrapper, NormalizerWrapper, Tokenizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use pieces::{AddedTokens, Splitter};

/// A table is emptied when it holds this many pieces.
const TABLE_PIECES: usize = if cfg!(test) { 1 << 7 } else { 1 << 16 };
/// Longer pieces are too rare to keep.
const TABLE_PIECE_BYTES: usize = 64;

/// Token ids with the byte range of the text that each covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    /// Start and end.
    pub(crate) offsets: Vec<(usize, usize)>,
}

/// A tokenizer behind tables of pieces. Shared by any number of threads.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    by_pieces: Option<ByPieces>,
}

impl Encoder {
    /// `tokenizer` neither pads, truncates nor post-processes.
    pub(crate) fn new(tokenizer: Tokenizer) -> Encoder {
        let by_pieces = ByPieces::of(&tokenizer);
        if by_pieces.is_none() {
            tracing::debug!("this tokenizer has no fast path: the tokenizers crate encodes whole texts");
        }
        Encoder { tokenizer, by_pieces }
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Nothing is added to the text.
    pub(crate) fn encode(&self, text: &str) -> Result<Encoded, tokenizers::Error> {
        match &self.by_pieces {
            Some(by_pieces) if by_pieces.takes(text) => match by_pieces.encode(text, self.tokenizer.get_model()) {
                Ok(encoded) => Ok(encoded),
                Err(Stop::Uncovered) => self.encode_plainly(text),
                Err(Stop::Model(error)) => Err(error),
            },
            _ => self.encode_plainly(text),
        }
    }

    /// The crate's own way.
    fn encode_plainly(&self, text: &str) -> Result<Encoded, tokenizers::Error> {
        let encoding = self.tokenizer.encode(text, false)?;
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }
}

/// Why a text is not encoded by pieces.
enum Stop {
    /// It holds a byte that the vocabulary has no token for.
    Uncovered,
    Model(tokenizers::Error),
}

/// Byte-level BPE, piece by piece.
struct ByPieces {
    /// Those cut out of the text as it stands, then those cut out of the rest.
    added: [AddedTokens; 2],
    splitter: Splitter,
    /// Whether only normalised text may be taken.
    nfc: bool,
    /// Tables nobody is using.
    idle: Mutex<Vec<Table>>,
}

impl ByPieces {
    /// None if the tokenizer does something that is not known here.
    fn of(tokenizer: &Tokenizer) -> Option<ByPieces> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let affixes = model.continuing_subword_prefix.is_some() || model.end_of_word_suffix.is_some();
        if model.dropout.is_some() || affixes || model.byte_fallback {
            return None;
        }
        let nfc = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let vocabulary = tokenizer.get_added_vocabulary();
        let added = [false, true].map(|normalized| AddedTokens::of(vocabulary, normalized));
        let [Some(plain), Some(normalized)] = added else { return None };
        let splitter = Splitter::of(tokenizer.get_pre_tokenizer()?)?;
        Some(ByPieces { added: [plain, normalized], splitter, nfc, idle: Mutex::default() })
    }

    fn takes(&self, text: &str) -> bool {
        !self.nfc || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes
    }

    fn encode(&self, text: &str, model: &ModelWrapper) -> Result<Encoded, Stop> {
        let idle = || self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut table = idle().pop().unwrap_or_default();
        let mut writer = Writer { out: Encoded::default(), at: 0, table: &mut table, model };
        let done = self.write(text, &mut writer);
        let out = writer.out;
        idle().push(table);
        done.map(|()| out)
    }

    fn write(&self, text: &str, writer: &mut Writer) -> Result<(), Stop> {
        let [plain, normalized] = &self.added;
        for (part, token) in plain.cut(text) {
            if let Some(id) = token {
                writer.token(id, part.len());
                continue;
            }
            for (part, token) in normalized.cut(part) {
                match token {
                    Some(id) => writer.token(id, part.len()),
                    None => self.splitter.each(part, &mut |piece| writer.piece(piece))?,
                }
            }
        }
        Ok(())
    }
}

/// Pieces with their tokens.
#[derive(Default)]
struct Table {
    /// Where a piece's tokens start in `tokens`, and how many they are.
    places: AHashMap<Box<str>, (u32, u32)>,
    /// Id and length in bytes.
    tokens: Vec<(u32, u32)>,
}

/// Writes tokens one after another: they cover the text without a gap.
struct Writer<'a> {
    out: Encoded,
    at: usize,
    table: &'a mut Table,
    model: &'a ModelWrapper,
}

impl Writer<'_> {
    fn token(&mut self, id: u32, length: usize) {
        self.out.ids.push(id);
        self.out.offsets.push((self.at, self.at + length));
        self.at += length;
    }

    fn piece(&mut self, piece: &str) -> Result<(), Stop> {
        if let Some(&(start, count)) = self.table.places.get(piece) {
            for index in start as usize..(start + count) as usize {
                let (id, length) = self.table.tokens[index];
                self.token(id, length as usize);
            }
            return Ok(());
        }
        let written: String = piece.bytes().map(bytes::written).collect();
        let tokens = self.model.tokenize(&written).map_err(Stop::Model)?;
        // Each character of a token's text stands for one byte; bytes without a token are left out or become another one.
        if tokens.iter().map(|token| token.value.as_str()).collect::<String>() != written {
            return Err(Stop::Uncovered);
        }
        if piece.len() <= TABLE_PIECE_BYTES {
            self.remember(piece, &tokens);
        }
        tokens.iter().for_each(|token| self.token(token.id, token.value.chars().count()));
        Ok(())
    }

    fn remember(&mut self, piece: &str, tokens: &[tokenizers::Token]) {
        if self.table.places.len() == TABLE_PIECES {
            *self.table = Table::default();
        }
        let start = self.table.tokens.len() as u32;
        self.table.places.insert(piece.into(), (start, tokens.len() as u32));
        let lengths = tokens.iter().map(|token| (token.id, token.value.chars().count() as u32));
        self.table.tokens.extend(lengths);
    }
}

#[cfg(test)]
mod tests;
