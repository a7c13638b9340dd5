//! The characters that byte-level BPE writes bytes with.

use std::array;
use std::sync::LazyLock;

static WRITTEN: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100..;
    array::from_fn(|byte| match byte as u8 {
        printable @ (b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) => char::from(printable),
        _ => next.next().and_then(char::from_u32).expect("68 bytes are not printable"),
    })
});

/// Printable bytes stand for themselves, the others for characters from U+0100 on, in their order.
pub(super) fn written(byte: u8) -> char {
    WRITTEN[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use super::written;

    #[test]
    fn they_are_the_crates_own() {
        let own: std::collections::HashSet<char> = (0..=255).map(written).collect();
        assert_eq!((own.len(), written(b' '), written(b'\n')), (256, 'Ġ', 'Ċ'));
        assert!(tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().iter().all(|c| own.contains(c)));
    }
}
