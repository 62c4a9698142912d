#![no_main]

mnn_kv_fuzz::target!(decode_checked);
