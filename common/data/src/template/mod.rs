//! The model's own chat template, rendered as transformers renders it.
/// A chat template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {}
/// Why one conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);
