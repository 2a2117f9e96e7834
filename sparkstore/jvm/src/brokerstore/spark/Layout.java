package brokerstore.spark;

import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.fasterxml.jackson.databind.annotation.JsonNaming;

/** The numbers of {@code commitlog.layout}, which the planner sends by its names. */
@JsonNaming(PropertyNamingStrategies.UpperSnakeCaseStrategy.class)
record Layout(
    int sizeAt, int magicAt, int bodyCrcAt, int queueIdAt, int queueOffsetAt, int physicalOffsetAt, int sysFlagAt,
    int storeHostAt, int hostSize, int bodySizeAt, int bodyAt, int topicSizeSize, int propertiesSizeSize, int recordSizeMin,
    int magicV1, int magicBlank, int blankSize, int crcMask, int nameEnd, int pairEnd, int crcDigits, int crcSize, String crcName) {}
