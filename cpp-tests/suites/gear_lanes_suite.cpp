// Format lanes of the lossless codec: blobs of earlier versions, and damage.

#include "cache_words.hpp"

namespace {

using namespace support;

TEST(GearLanes, GoldenBlobsAreDecodedAndNoPartOfThem) {
    std::size_t count = 0;
    for (const json& entry : json_reader(read_text("gear_lanes/manifest.json")).read().items) {
        const std::string name = entry["name"].text, dtype = entry["dtype"].text;
        SCOPED_TRACE(name);
        const bytes words = read_file("gear_lanes/" + name + ".bin"), blob = read_file("gear_lanes/" + name + ".mnkv");
        for (const word_codec& codec : all_codecs) {
            if (codec.type_name != dtype) {
                continue;
            }
            ++count;
            EXPECT_EQ(decoded(codec, blob, words.size()), words);
            bytes out(words.size());
            std::size_t length = 0;
            for (std::size_t cut = 0; cut < blob.size(); cut += 1 + blob.size() / 97) {
                const bytes part(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(cut));
                EXPECT_NE(codec.decode(part.data(), part.size(), out.data(), out.size(), &length), MNNKV_OK) << cut;
            }
        }
    }
    EXPECT_EQ(count, 8u);
}

}  // namespace
