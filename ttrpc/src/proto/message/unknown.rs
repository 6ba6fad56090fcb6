//! Fields that no version of the protocol knows of: they are skipped.

use prost::encoding::{DecodeContext, WireType, skip_field};

use super::{Malformed, take_key};

/// Groups that may be open at a time in an unknown field. prost has 100.
const MAX_GROUP_DEPTH: usize = 64;

/// Skips an unknown field. The end of a group has to be looked for: the fields in it count as others do.
pub(super) fn skip(
    wire_type: WireType,
    tag: u32,
    data: &mut &[u8],
    fields_left: &mut usize,
) -> Result<(), Malformed> {
    match wire_type {
        WireType::StartGroup => skip_group(tag, data, fields_left),
        WireType::EndGroup => Err(Malformed::Group),
        _ => Ok(skip_field(wire_type, tag, data, DecodeContext::default())?),
    }
}

#[cold]
fn skip_group(tag: u32, data: &mut &[u8], fields_left: &mut usize) -> Result<(), Malformed> {
    let mut open = vec![tag];
    while let Some(&innermost) = open.last() {
        if data.is_empty() {
            return Err(Malformed::Truncated);
        }
        *fields_left = fields_left.checked_sub(1).ok_or(Malformed::TooManyFields)?;
        match take_key(data)? {
            (tag, WireType::StartGroup) if open.len() < MAX_GROUP_DEPTH => open.push(tag),
            (tag, WireType::EndGroup) if tag == innermost => drop(open.pop()),
            (_, WireType::StartGroup | WireType::EndGroup) => return Err(Malformed::Group),
            (tag, wire_type) => skip_field(wire_type, tag, data, DecodeContext::default())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped<'a>(
        wire_type: WireType,
        data: &'a [u8],
        fields_left: &mut usize,
    ) -> Result<&'a [u8], Malformed> {
        let mut left = data;
        skip(wire_type, 9, &mut left, fields_left).map(|()| left)
    }

    #[test]
    fn unknown_fields_are_skipped_groups_as_well() {
        let group = |content: &[u8]| [content, &[9 << 3 | 4]].concat();
        // A varint, a string, a group with a varint and a group in it, and an empty one.
        for (wire_type, field) in [
            (WireType::Varint, vec![0x96, 1]),
            (WireType::LengthDelimited, b"\x02hi".to_vec()),
            (WireType::StartGroup, group(&[0x08, 5, 2 << 3 | 3, 0x08, 5, 2 << 3 | 4])),
            (WireType::StartGroup, group(&[])),
        ] {
            let data = [&field[..], b"rest"].concat();
            assert_eq!(skipped(wire_type, &data, &mut 10).expect("it is well formed"), b"rest");
        }
    }

    #[test]
    fn a_group_is_skipped_to_a_bounded_depth_and_a_bounded_number_of_fields() {
        let nested = |depth: usize| [vec![9 << 3 | 3; depth], vec![9 << 3 | 4; depth + 1]].concat();
        let skipped = |data: &[u8], mut fields| {
            skipped(WireType::StartGroup, data, &mut fields).map(|rest| (rest.len(), fields))
        };
        assert_eq!(skipped(&nested(MAX_GROUP_DEPTH - 1), 1000).expect("it is not too deep").0, 0);
        let too_deep = skipped(&nested(MAX_GROUP_DEPTH), 1000);
        assert!(matches!(too_deep, Err(Malformed::Group)), "{too_deep:?}");
        let fields = [[8, 1].repeat(10), vec![9 << 3 | 4]].concat();
        assert_eq!(skipped(&fields, 11).expect("so many are allowed").1, 0);
        let too_many = skipped(&fields, 10);
        assert!(matches!(too_many, Err(Malformed::TooManyFields)), "{too_many:?}");
        let unclosed = skipped(&[8, 1], 10);
        assert!(matches!(unclosed, Err(Malformed::Truncated)), "{unclosed:?}");
        let wrong = skipped(&[8 << 3 | 4], 10);
        assert!(matches!(wrong, Err(Malformed::Group)), "{wrong:?}");
    }
}
