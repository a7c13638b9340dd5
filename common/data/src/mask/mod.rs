//! Which characters and which tokens are supervised: what the assistant wrote, with the token that ends its turn.
//!
//! The rendering itself is asked, not guessed from its look: the conversation is rendered a second time with a mark in
//! place of each of the assistant's texts. What stands between the marks is the template's; if filling the marks in
//! does not give back the first rendering letter for letter, the template does something else with these texts and the
//! row has no exact mask. User text that quotes a header, or a template that rewrites earlier turns, thus cannot shift
//! a span. Where the template itself marks the assistant's words (generation tags), its marks are taken.

mod calls;
mod markers;

use std::ops::Range;

use common::config::SupervisedTurns;

pub use markers::marked_text;

use crate::chats::{Conversation, Message};
use crate::row::RowFault;
use crate::template::{ChatTemplate, Ending, RenderError};

/// Private-use characters around a mark's number; a row that contains them itself is refused.
const OPEN: char = '\u{10FFFD}';
const CLOSE: char = '\u{10FFFC}';

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// How a template opens and ends the assistant's turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnShape {
    /// What stands between the user's text and the place where the model starts to write.
    opening: String,
    /// The special token that ends the assistant's turn; `None` if the template writes none.
    closing: Option<String>,
    /// The tokenizer's.
    special_tokens: Vec<String>,
}

impl TurnShape {
    /// Reads it off a conversation of two turns. `special_tokens` are the tokenizer's.
    ///
    /// # Errors
    /// The template cannot render even that.
    pub fn probe(template: &ChatTemplate, special_tokens: Vec<String>) -> Result<TurnShape, RenderError> {
        let (question, answer) = (mark(0), mark(1));
        let user = Message::new("user", &question);
        let assistant = Message::new("assistant", &answer);
        let prompt = Conversation { messages: vec![user.clone()], tools: None };
        let whole = Conversation { messages: vec![user, assistant], tools: None };
        let after = |text: String, mark: &str| match text.split_once(mark) {
            Some((_, after)) => Ok(after.to_owned()),
            None => Err(RenderError("the chat template leaves out what a plain conversation says".to_owned())),
        };
        let opening = after(template.render(&prompt, Ending::Prompt)?, &question)?;
        let opening = calls::without_empty_thought(&opening).to_owned();
        let tail = after(template.render(&whole, Ending::Closed)?, &answer)?;
        let closing = special_tokens.iter().filter_map(|token| Some((tail.find(token.as_str())?, token)));
        // Of two that start at one place the longer is the token.
        let closing = closing.min_by_key(|(place, token)| (*place, std::cmp::Reverse(token.len())));
        let closing = closing.map(|(_, token)| token.clone());
        Ok(TurnShape { opening, closing, special_tokens })
    }
}

fn mark(number: usize) -> String {
    format!("{OPEN}{number}{CLOSE}")
}

/// What one mark stands for.
struct Marked<'a> {
    /// The assistant's turn, from 0.
    turn: usize,
    text: &'a str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Templates may leave it out of earlier turns.
    Reasoning,
    Answer,
}

/// Which of the assistant's words are supervised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supervision {
    /// All turns or the last.
    pub turns: SupervisedTurns,
    /// Reasoning is left out.
    pub answers_only: bool,
}

/// A rendering with its supervised byte ranges, ascending, one for each of the assistant's turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marking {
    /// The conversation rendered with [`Ending::Closed`].
    pub text: String,
    /// What is supervised of it.
    pub spans: Vec<Range<usize>>,
}

/// Renders a conversation and finds what is supervised.
///
/// # Errors
/// The template refuses it; no assistant turn, or one of whose place the template leaves doubt.
pub fn mark_up(
    conversation: &Conversation,
    template: &ChatTemplate,
    shape: &TurnShape,
    supervision: Supervision,
) -> Result<Marking, RowFault> {
    if !conversation.messages.iter().any(|message| message.role() == "assistant") {
        return Err(RowFault::NoAssistant);
    }
    let Marking { text, mut spans } = if template.marks_generations() {
        let (text, spans) = template.render_marked(conversation)?;
        let answers = |span: Range<usize>| if supervision.answers_only { behind_thought(&text, span) } else { span };
        Marking { spans: spans.into_iter().map(answers).collect(), text }
    } else {
        let text = template.render(conversation, Ending::Closed)?;
        Marking { spans: spans(&text, conversation, template, shape, supervision.answers_only)?, text }
    };
    if supervision.turns == SupervisedTurns::Last {
        spans.drain(..spans.len().saturating_sub(1));
    }
    Ok(Marking { text, spans })
}

/// What follows the reasoning block that a span begins with.
fn behind_thought(text: &str, span: Range<usize>) -> Range<usize> {
    let thought = text[span.clone()].find(THINK_END).map_or(0, |at| at + THINK_END.len());
    span.start + thought..span.end
}

fn spans(
    text: &str,
    conversation: &Conversation,
    template: &ChatTemplate,
    shape: &TurnShape,
    answers_only: bool,
) -> Result<Vec<Range<usize>>, RowFault> {
    let (mut marks, mut only_calls) = (Vec::new(), Vec::new());
    let mut marked = conversation.clone();
    let assistants = || conversation.messages.iter().enumerate().filter(|(_, message)| message.role() == "assistant");
    for (turn, (index, original)) in assistants().enumerate() {
        if original.only_calls_tools() {
            only_calls.push((index, turn));
        } else {
            marked.messages[index] = mark_message(original, turn, &mut marks)?;
        }
    }
    let mut found = Vec::new();
    if !marks.is_empty() {
        let pieces = Pieces::cut(&template.render(&marked, Ending::Closed)?, &marks)?;
        let places = pieces.places(text, &marks)?;
        let texts = assistants().enumerate().filter(|(_, (_, message))| !message.only_calls_tools());
        let turns: Vec<Turn> = texts.map(|(number, (_, message))| Turn::of(number, message, &marks, &places)).collect();
        found = text_spans(text, &turns, shape, answers_only);
        let numbers = assistants().filter(|(_, message)| !message.only_calls_tools()).map(|(index, _)| index);
        for (span, index) in found.iter_mut().zip(numbers) {
            // After a tool's result a turn may open without the words that it opens with after a question.
            if index > 0 && conversation.messages[index - 1].role() == "tool" {
                span.start = calls::opening(text, span.start, conversation, index, template);
            }
        }
    }
    for place in only_calls {
        let span = calls::span(text, conversation, place, template, shape)?;
        found.push(if answers_only { behind_thought(text, span) } else { span });
    }
    found.sort_unstable_by_key(|span| span.start);
    match found.windows(2).position(|pair| pair[0].end > pair[1].start) {
        Some(turn) => Err(RowFault::Mask(turn + 1, "the chat template runs it together with the next")),
        None => Ok(found),
    }
}

fn text_spans(text: &str, turns: &[Turn], shape: &TurnShape, answers_only: bool) -> Vec<Range<usize>> {
    let free_from = std::iter::once(0).chain(turns.iter().map(|turn| turn.text.end));
    let free_to = turns.iter().skip(1).map(|turn| turn.text.start).chain(std::iter::once(text.len()));
    let around = turns.iter().zip(free_from.zip(free_to));
    let span = |(turn, (from, to)): (&Turn, (usize, usize))| {
        let span = turn.span(&text[from..turn.text.start], &text[turn.text.end..to], shape);
        if answers_only && turn.thinks { turn.answer..span.end } else { span }
    };
    around.map(span).collect()
}

/// Puts marks in place of the message's texts. A reasoning part, in its own field or in think tags, gets its own.
fn mark_message<'a>(original: &'a Message, turn: usize, marks: &mut Vec<Marked<'a>>) -> Result<Message, RowFault> {
    let content = original.text("content").ok_or(RowFault::Mask(turn + 1, "it has no text"))?;
    let mut marked = original.clone();
    let mut add = |text, kind| {
        marks.push(Marked { turn, text, kind });
        mark(marks.len() - 1)
    };
    if let Some(reasoning) = original.text("reasoning_content").filter(|text| !text.trim().is_empty()) {
        marked = marked.with_text("reasoning_content", &add(reasoning, Kind::Reasoning));
    }
    let Some((thought, answer)) = content.split_once(THINK_END) else {
        return Ok(marked.with_text("content", &add(content, Kind::Answer)));
    };
    let (tag, reasoning) = match thought.find(THINK) {
        Some(at) if thought[..at].trim().is_empty() => thought.split_at(at + THINK.len()),
        _ => ("", thought),
    };
    // An empty thought is the template's or the server's, not the model's: only the answer is supervised.
    let thought = if reasoning.trim().is_empty() { reasoning.to_owned() } else { add(reasoning, Kind::Reasoning) };
    let answer = add(answer, Kind::Answer);
    Ok(marked.with_text("content", &format!("{tag}{thought}{THINK_END}{answer}")))
}

/// A marked rendering: the template's own text around and between the marks it kept.
struct Pieces {
    /// One more than marks.
    literals: Vec<String>,
    /// Numbers of the marks, ascending.
    kept: Vec<usize>,
}

impl Pieces {
    fn cut(rendered: &str, marks: &[Marked]) -> Result<Pieces, RowFault> {
        let mut segments = rendered.split(OPEN);
        let mut pieces =
            Pieces { literals: segments.next().map(str::to_owned).into_iter().collect(), kept: Vec::new() };
        for segment in segments {
            let parsed = segment.split_once(CLOSE).and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
            let last = pieces.kept.last();
            let Some((number, literal)) = parsed
                .filter(|&(number, _): &(usize, _)| number < marks.len() && last.is_none_or(|&last| last < number))
            else {
                let turn = last.map_or(0, |&last| marks[last].turn);
                return Err(RowFault::Mask(turn + 1, "the chat template repeats or reorders texts from here on"));
            };
            pieces.kept.push(number);
            pieces.literals.push(literal.to_owned());
        }
        let missing = |(number, mark): (usize, &Marked)| mark.kind == Kind::Answer && !pieces.kept.contains(&number);
        match marks.iter().enumerate().find(|&(number, mark)| missing((number, mark))) {
            Some((_, mark)) => Err(RowFault::Mask(mark.turn + 1, "the chat template leaves its text out")),
            None => Ok(pieces),
        }
    }

    /// Fills the marks in and finds each one's place in `text`; `None` for marks that the template left out.
    fn places(&self, text: &str, marks: &[Marked]) -> Result<Vec<Option<Range<usize>>>, RowFault> {
        let rewritten = |turn: usize| RowFault::Mask(turn + 1, "the chat template rewrites its text");
        let mut places = vec![None; marks.len()];
        let first = marks[self.kept[0]].turn;
        let mut rest = text.strip_prefix(self.literals[0].as_str()).ok_or_else(|| rewritten(first))?;
        for (&number, literal) in self.kept.iter().zip(&self.literals[1..]) {
            let mark = &marks[number];
            let fits = |form: &&str| rest.strip_prefix(*form).is_some_and(|rest| rest.starts_with(literal.as_str()));
            let form = forms(mark.text).into_iter().find(fits).ok_or_else(|| rewritten(mark.turn))?;
            let start = text.len() - rest.len();
            places[number] = Some(start..start + form.len());
            rest = &rest[form.len() + literal.len()..];
        }
        match rest.is_empty() {
            true => Ok(places),
            false => Err(rewritten(marks[marks.len() - 1].turn)),
        }
    }
}

/// What templates make of a text: they leave it, or strip white space or line breaks at either end.
fn forms(text: &str) -> [&str; 7] {
    [
        text,
        text.trim(),
        text.trim_start(),
        text.trim_end(),
        text.trim_matches('\n'),
        text.trim_start_matches('\n'),
        text.trim_end_matches('\n'),
    ]
}

/// One of the assistant's turns in the rendering.
struct Turn {
    /// From its first text's start to its answer's end.
    text: Range<usize>,
    /// Where its answer starts.
    answer: usize,
    thinks: bool,
    calls_tools: bool,
}

impl Turn {
    fn of(number: usize, message: &Message, marks: &[Marked], places: &[Option<Range<usize>>]) -> Turn {
        let own = marks.iter().zip(places).filter(|(mark, _)| mark.turn == number);
        let mut kept = own.filter_map(|(mark, place)| Some((mark.kind, place.clone()?)));
        let (kind, first) = kept.next().expect("every answer has its place");
        let answer = kept.next_back().map_or(first.clone(), |(_, answer)| answer);
        let thinks = kind == Kind::Reasoning;
        Turn { text: first.start..answer.end, answer: answer.start, thinks, calls_tools: message.calls_tools() }
    }

    /// From the place where the model starts to write to the end of its turn. `head` and `tail` are what the rendering
    /// holds before and behind, up to the neighbouring turns.
    fn span(&self, head: &str, tail: &str, shape: &TurnShape) -> Range<usize> {
        // White space between prompt and text is written by the model, and so is the tag before a thought.
        let own = |lead: &str| lead.trim().is_empty() || (self.thinks && lead.trim() == THINK);
        let lead = head.rsplit_once(shape.opening.as_str()).map_or("", |(_, lead)| lead);
        let start = if own(lead) { self.text.start - lead.len() } else { self.text.start };
        let ending = shape.closing.as_deref().and_then(|closing| {
            let lead = &tail[..tail.find(closing)?];
            let calls = || self.calls_tools && !shape.special_tokens.iter().any(|token| lead.contains(token.as_str()));
            (lead.trim().is_empty() || calls()).then_some(lead.len() + closing.len())
        });
        start..self.text.end + ending.unwrap_or(0)
    }
}

/// The loss mask of tokens that cover the byte ranges `offsets`. A token that covers no text counts where it stands.
///
/// # Errors
/// A token lies across the border of a span; the span's index.
pub fn token_mask(offsets: &[(usize, usize)], spans: &[Range<usize>]) -> Result<Vec<u8>, usize> {
    let bit = |&(start, end): &(usize, usize)| {
        let index = spans.partition_point(|span| span.end <= start);
        match spans.get(index) {
            Some(span) if span.start <= start && end <= span.end => Ok(1),
            Some(span) if span.start < end => Err(index),
            _ => Ok(0),
        }
    };
    offsets.iter().map(bit).collect()
}
