// nvcuda::wmma. A fragment holds what the mma.sync fragments it is multiplied with hold, so that mma_sync only repacks.
#pragma once
