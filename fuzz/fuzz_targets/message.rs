//! The data of a Request or a Response is decoded or refused, and never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ttrpc::proto::message::{Request, decode_response, encode_status};

fuzz_target!(|data: &[u8]| {
    let _ = Request::decode(data);
    if let Ok(Err(status)) = decode_response(data) {
        let data = encode_status(&status);
        let again = decode_response(&data).expect("own output decodes");
        assert_eq!(again, Err(status));
    }
});
