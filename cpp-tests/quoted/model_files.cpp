// Files that come with a model, through mnnkv.hpp: a learned compressor, quantised weights, config.json.

#include <cstdio>
#include <fstream>
#include <mnnkv/model.hpp>
#include <string>
#include <vector>

std::string contents(const std::string& name) {
    std::ifstream file(MNNKV_MODEL_TESTDATA_DIR "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

/// A packed cache of 14 tokens becomes shorter, in place.
mnnkv::status compress(std::uint32_t& kv_len) {
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F32;
    layout.kv_heads = 2, layout.head_dim = 4, layout.max_tokens = 16;
    layout.e_pack = 12, layout.l_pack = 1, layout.h_pack = 8, layout.flash_block = 64;
    std::uint64_t key_bytes = 0, value_bytes = 0;
    mnnkv::status s = mnnkv_layout_check(&layout, &key_bytes, &value_bytes);
    std::vector<float> key(key_bytes / 4, 0.5f), value(value_bytes / 4, 0.25f);
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &layout, cache.key = key.data(), cache.value = value.data(), cache.kv_len = 14;
    mnnkv::compressor compressor;
    if (s) s = compressor.open(MNNKV_MODEL_TESTDATA_DIR "/compressor/std_fp32_12.bin");
    if (s) s = compressor.run_caches(0, &cache, 1);
    kv_len = cache.kv_len;
    return s;
}

/// A report on a quantised model, and one of its linears as floats.
mnnkv::status weights_of(const std::string& directory, const char* name, std::string& report, std::string& floats) {
    mnnkv::msmodelslim model;
    mnnkv_msmodelslim_linear_info info = mnnkv_msmodelslim_linear_info();
    mnnkv::status s = mnnkv::msmodelslim::check_json(directory.c_str(), report);
    if (s) s = model.open(directory.c_str());
    if (s) s = model.linear_info(name, info);
    floats.resize(info.n * info.k * sizeof(float));
    return s ? model.dequantize(name, 0, info.n, MNNKV_DTYPE_F32, &floats[0], floats.size()) : s;
}

/// The longest chat in 4 GiB when three of four tokens are evicted.
mnnkv::status longest_chat(const std::string& config_json, std::uint64_t& tokens) {
    mnnkv::sizing model;
    mnnkv_sizing_options options = mnnkv::sizing_defaults();
    options.h2o_ratio = 4;
    std::uint64_t bytes = 0;
    const mnnkv::status s = model.create(config_json.data(), config_json.size());
    return s ? model.longest(4ull << 30, tokens, bytes, &options) : s;
}

int main() {
    const std::string directory = "msmodelslim/w8a16_per_channel/", linear = "model.layers.0.mlp.down_proj";
    std::string report, weights;
    std::uint32_t kv_len = 0;
    std::uint64_t tokens = 0;
    mnnkv::status s = compress(kv_len);
    if (s) s = weights_of(MNNKV_MODEL_TESTDATA_DIR "/" + directory, linear.c_str(), report, weights);
    if (s) s = longest_chat(contents("configs/llama-3-8b.json"), tokens);
    std::printf("%s%u tokens after the prompt\n%s\n%llu tokens in 4 GiB\n", s.message(),
                kv_len, report.c_str(), static_cast<unsigned long long>(tokens));
    const std::string expected = contents(directory + "expected/" + linear + ".weight.deq.npy");
    const bool right = expected.size() > weights.size() && expected.substr(expected.size() - weights.size()) == weights;
    return s && right && kv_len == 6 && tokens > 32768 ? 0 : 1;
}
