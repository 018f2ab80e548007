#include "tree/saving.h"

#include "cache/cell_image.h"
#include "cache/point_cache.h"

namespace kvtrie {

std::vector<BlobSection> blob_sections(const KvShape& shape, std::uint32_t cells) {
  const CellImage image(shape, cells);
  std::vector<BlobSection> sections(image.sections());
  const std::uint32_t per_tensor = (cells + kSectionTokens - 1) / kSectionTokens;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (std::uint32_t index = 0; index < per_tensor; ++index) {
        const SectionRange range = image.section(layer, value, index);
        sections[image.section_number(layer, value, index)] = {range.offset, range.bytes};
      }
    }
  }
  return sections;
}

std::vector<BlobSection> blob_sections(const PointCache& cache, std::int32_t length) {
  std::vector<BlobSection> sections;
  for (const StateSection& each : cache.sections(length)) sections.push_back({each.offset, each.bytes});
  return sections;
}

SnapshotImage image_of(SnapshotImage::Role role, std::size_t cache, std::int32_t first, std::uint32_t cells,
                       const Blob& blob) {
  SnapshotImage image{role, static_cast<std::uint32_t>(cache), first, cells, {}};
  for (const BlobSection& section : blob.sections()) image.sections.push_back({section.bytes, 0});
  return image;
}

bool seal_images(Saving& saving) {
  for (std::size_t i = 0; i < saving.blobs.size(); ++i) {
    Blob& blob = *saving.blobs[i];
    blob.seal();
    if (blob.state() != Blob::State::kSealed) return false;
    const std::vector<std::uint64_t> sums = blob.checksums();
    std::vector<SnapshotSection>& sections = saving.header.images[i].sections;
    for (std::size_t s = 0; s < sections.size(); ++s) sections[s].checksum = sums[s];
  }
  return true;
}

}  // namespace kvtrie
