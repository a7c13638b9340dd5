//! Turns around tools. One that only calls them has no text that could be marked.
//!
//! The conversation is rendered up to the opening of the turn, and again up to its end. Where what lies between is found in
//! the same place of the whole rendering, it is the turn.

use std::ops::Range;

use super::{THINK, THINK_END, TurnShape};
use crate::chats::Conversation;
use crate::row::RowFault;
use crate::template::{ChatTemplate, Ending};

/// The span of message `index`, the assistant's turn `turn` (from 0), in `text`.
pub(super) fn span(
    text: &str,
    conversation: &Conversation,
    (index, turn): (usize, usize),
    template: &ChatTemplate,
    shape: &TurnShape,
) -> Result<Range<usize>, RowFault> {
    let up_to = |count: usize, ending| {
        let messages = conversation.messages[..count].to_vec();
        template.render(&Conversation { messages, tools: conversation.tools.clone() }, ending)
    };
    let doubtful =
        || RowFault::Mask(turn + 1, "it only calls tools, and the chat template has no place of its own for it");
    // The template may refuse a beginning although it takes the whole.
    let prompt = up_to(index, Ending::Prompt).map_err(|_| doubtful())?;
    let before = without_empty_thought(&prompt);
    let through = up_to(index + 1, Ending::Closed).map_err(|_| doubtful())?;
    let (rest, written) = text.strip_prefix(before).zip(through.strip_prefix(before)).ok_or_else(doubtful)?;
    let closing = shape.closing.as_deref().and_then(|closing| Some(written.rfind(closing)? + closing.len()));
    let written = &written[..closing.unwrap_or(written.trim_end().len())];
    // Templates write an empty thought or not depending on what follows.
    let written = &written[empty_thought(written)..];
    let start = before.len() + empty_thought(rest);
    match !written.is_empty() && text[start..].starts_with(written) {
        true => Ok(start..start + written.len()),
        false => Err(doubtful()),
    }
}

/// Where the model starts to write message `index`: at `start`, or before the white space in front of it, where the prompt
/// ends there.
pub(super) fn opening(
    text: &str,
    start: usize,
    conversation: &Conversation,
    index: usize,
    template: &ChatTemplate,
) -> usize {
    let messages = conversation.messages[..index].to_vec();
    let prompt = template.render(&Conversation { messages, tools: conversation.tools.clone() }, Ending::Prompt);
    let end = prompt.ok().filter(|prompt| text.starts_with(prompt.as_str())).map(|prompt| prompt.len());
    end.filter(|&end| end <= start && text[end..start].trim().is_empty()).unwrap_or(start)
}

/// Bytes of the empty reasoning block at the start of a text, which is the template's and not the model's.
fn empty_thought(text: &str) -> usize {
    let rest = text.trim_start().strip_prefix(THINK).and_then(|rest| rest.trim_start().strip_prefix(THINK_END));
    rest.map_or(0, |rest| text.len() - rest.trim_start().len())
}

/// A prompt up to the empty reasoning block that it may end with.
pub(super) fn without_empty_thought(prompt: &str) -> &str {
    let thought = prompt.trim_end().strip_suffix(THINK_END).and_then(|rest| rest.trim_end().strip_suffix(THINK));
    thought.unwrap_or(prompt)
}
