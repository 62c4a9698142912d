#![no_main]

mnn_kv_fuzz::target!(h2o_plan);
