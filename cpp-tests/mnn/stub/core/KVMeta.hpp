// Stands in for MNN's header of this name: the LLM engine's numbers for attention.

#ifndef MNNKV_TESTS_STUB_KV_META_HPP
#define MNNKV_TESTS_STUB_KV_META_HPP

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace MNN {

/// As much as the adapter reads of a state of linear attention.
class Tensor {
public:
    explicit Tensor(std::size_t bytes) : bytes_(bytes) {}
    template <class T>
    T* host() {
        return static_cast<T*>(static_cast<void*>(bytes_.data()));
    }
    int elementSize() const { return static_cast<int>(bytes_.size()); }

private:
    std::vector<char> bytes_;
};

}  // namespace MNN

namespace kv_plugin {
struct host;
void keep(host&, const std::shared_ptr<void>&, std::initializer_list<MNN::Tensor*>);
}  // namespace kv_plugin

namespace MNN {

struct KVMeta {
    /// Values of file_flag.
    enum { NoChange, PendingWrite, PendingRead };

    std::size_t block = 4096;
    /// Tokens of the chat before this step.
    std::size_t previous = 0;
    /// Tokens that this step removes from the end,
    std::size_t remove = 0;
    /// except n_reserve ranges (offset, length), whose offsets start at the first removed token.
    int* reserve = nullptr;
    int n_reserve = 0;
    std::vector<int> reserveHost;
    /// New tokens.
    std::size_t add = 0;
    std::string file_name;
    int file_flag = NoChange;
    int seqlen_in_disk = 0;
    int layer_nums = 0;
    float attn_scale = 0;
    std::shared_ptr<kv_plugin::host> plugin;
    std::size_t synced = 0;

    std::size_t reserved() const {
        std::size_t sum = 0;
        for (int i = 0; i < n_reserve; ++i) {
            sum += static_cast<std::size_t>(reserve[2 * i + 1]);
        }
        return sum;
    }

    /// Called after a step.
    void sync() {
        previous = previous - remove + reserved() + add;
        remove = add = 0;
        reserve = nullptr;
        n_reserve = 0;
        ++synced;
    }
};

}  // namespace MNN

#endif  // MNNKV_TESTS_STUB_KV_META_HPP
