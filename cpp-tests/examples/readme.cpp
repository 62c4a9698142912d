// The example of README.md; a test keeps the two the same.

#include <cstdio>
#include <vector>
// [readme]
#include <mnnkv.hpp>

// Encodes the cold half of a layer, gives its memory back, and restores it bit for bit.
mnnkv::status shrink(mnnkv::store& store, const mnnkv_layout& layout, void* key, void* value, uint32_t kv_len) {
    mnnkv::status s = store.submit(0, layout, key, value, 0, kv_len / 2);  // copied out and encoded
    uint64_t released = 0, restored = 0;
    if (s) s = store.commit(0, layout, key, value, &released);    // raw pages go back to the system
    if (s) s = store.restore(0, layout, key, value, &restored);   // before attention reads them again
    std::printf("%s: %llu bytes given back\n", s ? "ok" : s.message(), (unsigned long long)released);
    return s;
}
// [readme]

int main() {
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F16;
    layout.kv_heads = 2;
    layout.head_dim = 64;
    layout.e_pack = 12;
    layout.l_pack = 1;
    layout.h_pack = 16;
    layout.flash_block = 64;
    layout.max_tokens = 1024;
    uint64_t key_bytes = 0, value_bytes = 0;
    if (mnnkv_layout_check(&layout, &key_bytes, &value_bytes) != MNNKV_OK) {
        return 1;
    }
    std::vector<unsigned char> key(key_bytes, 0x3c), value(value_bytes, 0x3c);
    const std::vector<unsigned char> before = key;
    mnnkv::store store;
    if (!store.create() || !shrink(store, layout, key.data(), value.data(), 1024)) {
        return 1;
    }
    return key == before ? 0 : 1;
}
